"""One process fails, cancels, stops or validates alone, in each place of a fit: no other waits for it forever, and all end alike."""

import json

import pytest

pytest.importorskip("accelerate")

from processes import CAN_SHARD, run
from trouble_cases import CASES, HOWS, expected, wrong


@pytest.fixture(scope="module", params=[2, 4])
def found(request, tmp_path_factory):
    """How each case ended, in each process."""
    folder = tmp_path_factory.mktemp("trouble")
    ended = run(request.param, "tests/trouble_cases.py", str(folder), *HOWS, timeout=900)
    assert not any(e.returncode for e in ended), ended[0].err[-3000:]
    return [json.loads((folder / f"trouble_{rank}.json").read_text()) for rank in range(request.param)]


@pytest.mark.parametrize("how", HOWS)
def test_all_processes_end_alike(found, how):
    for where in CASES[how]:
        assert not (what := wrong(how, where, found)), (where, what)


@pytest.mark.parametrize("mode", ["sharded", "accumulates"])
def test_nor_does_a_process_wait_where_messages_do_not_travel_with_the_gradients(mode, tmp_path):
    if mode == "sharded" and not CAN_SHARD:
        pytest.skip("this torch cannot shard")
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


EMPTY = """
import os, torch
from torch import nn
import cbnb.all as cbnb
x = torch.randn(24, 4)
own = [] if int(os.environ["RANK"]) == {empty} else [(x, x.sum(1, keepdim=True))] * 2
learn = cbnb.Learner(cbnb.DataLoaders(own, [], device="cpu"), nn.Linear(4, 1), nn.MSELoss()).remove_cb(cbnb.ProgressCallback)
try:
    with learn.distributed(divided=True):
        learn.fit(1)
except Exception as e:
    print(type(e).__name__, e)
"""


@pytest.mark.parametrize("empty", [0, 1])
def test_an_empty_loader_of_one_process_is_an_error_in_each(empty, tmp_path):
    """The process with the empty loader failed before it had joined the other, which waited for it."""
    (program := tmp_path / "empty.py").write_text(EMPTY.format(empty=empty))
    said = [e.out.splitlines()[-1:] for e in run(2, str(program), timeout=60)]
    why = "the training loader of this process has no batches: give each process items for at least one batch"
    assert said[empty] == [f"ValueError {why}"]
    assert said[1 - empty] == [f"OtherFailed process {empty} failed first: ValueError: {why}"]
