"""One process fails, cancels, stops or validates alone, in each place of a fit: no other waits for it forever, and all end alike."""

import json

import pytest

pytest.importorskip("accelerate")

from processes import run
from trouble_cases import CASES

HOWS = ["error", "fit", "epoch", "train", "validate", "batch", "backward", "step", "alone", "interrupt", "stop"]
AFTER_THE_EXCHANGE = ("after_backward", "before_step")  # where a cancel in one process would part the weights


@pytest.fixture(scope="module", params=[2, 4])
def found(request, tmp_path_factory):
    """How each case ended, in each process."""
    folder = tmp_path_factory.mktemp("trouble")
    ended = run(request.param, "tests/trouble_cases.py", str(folder), *HOWS, timeout=900)
    assert not any(e.returncode for e in ended), ended[0].err[-3000:]
    return [json.loads((folder / f"trouble_{rank}.json").read_text()) for rank in range(request.param)]


def expected(how: str, where: str) -> str:
    """The beginning of what the last process says."""
    if how == "error":
        return "ValueError: mine"
    if how == "interrupt":
        return "FitInterrupted: stopped in epoch 0"
    if how == "alone":
        return "RuntimeError: the processes have come to different places, where each waits for the others"
    cancels = how in ("fit", "epoch", "train", "batch", "step")
    if cancels and where in AFTER_THE_EXCHANGE:
        return "RuntimeError: a callback cancelled an update in one process"
    return "ended"


@pytest.mark.parametrize("how", HOWS)
def test_all_processes_end_alike(found, how):
    for where in CASES[how]:
        *others, last = [each[f"{how} {where}"] for each in found]
        assert last["said"].startswith(expected(how, where)), (where, last)
        for other in others:
            said = "OtherFailed: process" if how == "error" else expected(how, where)
            assert other["said"].startswith(said) and ("mine" in other["said"]) == (how == "error"), (where, other)
            if last["said"] == "ended":
                assert other["weights"] == last["weights"], (where, other, last)


@pytest.mark.parametrize("mode", ["sharded", "accumulates"])
def test_nor_does_a_process_wait_where_messages_do_not_travel_with_the_gradients(mode, tmp_path):
    hows = ["error", "fit", "alone"]
    ended = run(2, "tests/trouble_cases.py", str(tmp_path), *hows, mode, timeout=600)
    assert not any(e.returncode for e in ended), ended[0].err[-3000:]
    first, last = [json.loads((tmp_path / f"trouble_{rank}.json").read_text()) for rank in range(2)]
    for case, found in last.items():
        assert (found["said"] == "ended") == (first[case]["said"] == "ended") and found["weights"] == first[case]["weights"], case
        if case.startswith("error") and found["said"] != "ended":  # in a window, some events do not occur at this batch
            assert found["said"] == "ValueError: mine" and first[case]["said"] == "OtherFailed: process 1 failed first: ValueError: mine", (
                case
            )
        if case.startswith("alone"):
            assert found["said"].startswith(expected("alone", "")), case
