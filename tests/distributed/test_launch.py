"""Training in fresh processes: what comes back, what is shown meanwhile, and that nothing is left of them, however it ends."""

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

pytest.importorskip("accelerate")
pytest.importorskip("cloudpickle")

import cbnb.all as cbnb
from cbnb.display.steering import Steering
from cbnb.distributed import launch
from cbnb.distributed.data_parallel import Distributed
from cbnb.toy import line_learner

LIMIT = 150.0  # seconds for a test, most of which processes need to start on a busy machine


class Started:
    """The processes that a test has started, and those that they have."""

    def __init__(self):
        self.pids: list[int] = []

    def living(self) -> list[int]:
        """Processes of their sessions, orphans included; those that are dead and not yet waited for excepted."""
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                state, _, _, session = path.read_text().rpartition(")")[2].split()[:4]
            except OSError:
                continue
            if int(session) in self.pids and state not in "ZX":
                found.append(int(path.parent.name))
        return found

    def kill(self) -> None:
        for pid in self.living():
            os.kill(pid, signal.SIGKILL)


@pytest.fixture(autouse=True)
def started(monkeypatch, tmp_path) -> Iterator[Started]:
    """After each test no process lives and no file is left; a test that takes too long loses its processes, and fails."""
    found, start = Started(), launch._start

    def note(*args, **kwargs):
        process = start(*args, **kwargs)
        found.pids.append(process.pid)
        return process

    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(launch, "_start", note)
    late = threading.Timer(LIMIT, found.kill)
    late.start()
    yield found
    in_time = late.is_alive()
    late.cancel()
    left, files = found.living(), list(folder.glob("cbnb-*"))
    found.kill()
    assert in_time, f"the test took more than {LIMIT:g} s"
    assert not left and not files


def wait_until(condition: Callable[[], object], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"not true within {seconds:g} s")
        time.sleep(0.01)


class Net(nn.Module):
    def __init__(self, dropout: float = 0.0):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 1))

    def forward(self, x):
        return self.layers(x)


def new_learner(bs: int, model: Callable[[], nn.Module] = Net, num_workers: int = 0, progress: bool = False, **kwargs) -> cbnb.Learner:
    """128 items to train with; without a display, unless there should be `progress`."""
    n = 128
    torch.manual_seed(0)
    x = torch.randn(n + 32, 4)
    data = TensorDataset(x, x[:, :1] * 2 - x[:, 1:2])
    train = DataLoader(torch.utils.data.Subset(data, range(n)), bs, shuffle=True, num_workers=num_workers)
    valid = DataLoader(torch.utils.data.Subset(data, range(n, n + 32)), bs)
    learn = cbnb.Learner(cbnb.DataLoaders(train, valid, device="cpu"), model(), nn.MSELoss(), lr=0.01, **kwargs)
    return learn if progress else learn.remove_cb(cbnb.ProgressCallback)


def weights(learn: cbnb.Learner) -> torch.Tensor:
    return torch.cat([t.flatten().double() for t in learn.model.state_dict().values()]).clone()


def rank() -> int:
    return int(os.environ.get("RANK", -1))


class Notes(cbnb.Callback):
    """Counts batches, and prints in which process it is."""

    def __init__(self):
        self.n, self.ranks = 0, []

    def before_fit(self):
        print(f"this is process {rank()}")
        print(f"errors of process {rank()}", file=sys.stderr)
        self.ranks.append(rank())

    def after_batch(self):
        self.n += 1


class Slowly(cbnb.Callback):
    def __init__(self, seconds: float = 0.03):
        self.seconds = seconds

    def before_batch(self):
        time.sleep(self.seconds)


# --- what comes back


def test_two_processes_equal_one_with_batches_twice_as_large(capsys):
    class Local(nn.Sequential):  # no other process can import it
        def __init__(self):
            super().__init__(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    alone, learn, notes = new_learner(32, Local), new_learner(16, Local), Notes()
    earlier, steps = [], [128 // 32, 128 // 16]
    for each, n in zip((alone, learn), steps):
        torch.manual_seed(1)
        each.fit(1, lr=0.001)
        each.model.load_state_dict(alone.model.state_dict())
        each.create_opt()
        earlier.append(each.recorder.last())
        assert earlier[-1].n_steps == n
    before, opt, model = weights(learn), learn.opt, learn.model
    torch.manual_seed(2)
    alone.fit(3, lr=0.02)
    torch.manual_seed(2)
    capsys.readouterr()
    learn.fit_distributed(3, n_process=2, lr=0.02, cbs=notes)
    said = capsys.readouterr()

    # the same training, on the objects that were there before
    assert torch.allclose(weights(learn), weights(alone), atol=1e-6) and not torch.allclose(weights(learn), before)
    assert learn.model is model and learn.opt is opt and learn.recorder.history[0] is earlier[1]
    assert [int(s["step"]) for s in opt.state.values()] == [12] * 4
    assert all(p is q for p, q in zip(opt.param_groups[0]["params"], model.parameters()))
    mine, other = learn.recorder.last(), alone.recorder.last()
    assert len(learn.recorder.history) == 2 and mine.status == "done" and mine.n_steps == other.n_steps == 12
    for name in ("valid_loss", "step", "epoch"):
        assert mine[name] == pytest.approx(other[name], rel=1e-5)
    assert list(mine.raw_losses) == pytest.approx(list(other.raw_losses), rel=1e-5)
    assert mine.hyper("lr") == [0.02] * 12 and learn.lr == 0.01
    assert (learn.n_epoch, learn.epoch, learn.train_iter, learn.running) == (3, 2, 12, False)

    # process 0 has been heard and seen, and nobody else
    assert "this is process 0" in said.out and "process 1" not in said.out + said.err
    assert "errors of process 0" in said.err and said.out.count("train_loss") == 0
    assert (notes.ranks, notes.n) == ([0], 3 * (4 + 1)) and notes not in learn.cbs

    # it is a fit like others
    assert [point.called for point in learn.runs][-1] == "fit_distributed(3, n_process=2, lr=0.02, cbs=Notes)"
    learn.fit(1)
    assert learn.recorder.last().n_steps == 8
    learn.rewind(2)
    assert torch.equal(weights(learn), before) and len(learn.recorder.history) == 1


def test_one_fresh_process_gives_the_same_bits():
    def dropping() -> nn.Module:
        return Net(0.3)

    here, there, states = new_learner(16, dropping), new_learner(16, dropping), []
    for call in here.fit_one_cycle, partial(there.fit_distributed, n_process=1, method="fit_one_cycle"):
        torch.manual_seed(3)
        call(2, lr_max=0.05, wd=0.1)
        states.append(torch.get_rng_state())
    mine, other = there.recorder.last(), here.recorder.last()
    assert torch.equal(weights(here), weights(there)) and torch.equal(*states)
    assert list(mine.raw_losses) == list(other.raw_losses)
    assert all(mine.hyper(name) == other.hyper(name) for name in ("lr", "mom"))
    for learn in here, there:
        torch.set_rng_state(states[0])
        learn.fit(1)
    assert torch.equal(weights(here), weights(there))


def test_fine_tune_leaves_two_runs_and_everything_trainable():
    def halves(model):
        return [list(model.layers[0].parameters()), list(model.layers[1:].parameters())]

    here, there = (new_learner(16, splitter=halves) for _ in range(2))
    torch.manual_seed(5)
    here.fine_tune(2, 0.01)
    torch.manual_seed(5)
    there.fit_distributed(2, n_process=1, method="fine_tune", base_lr=0.01)
    assert torch.equal(weights(here), weights(there)) and all(p.requires_grad for p in there.model.parameters())
    assert [run.n_epoch for run in there.recorder.history] == [1, 2]
    there.rewind()
    assert len(there.recorder.history) == 0 and there.opt is None


@pytest.mark.parametrize("given", [cbnb.Samples(3), cbnb.Samples])
def test_samples_are_shown_in_the_notebook_with_all_epochs(given, capsys):
    learn = new_learner(16)
    learn.fit_distributed(3, n_process=2, cbs=given)
    assert capsys.readouterr().out.count("after epoch 2") == 1
    if isinstance(given, type):
        return
    assert given.epochs == [0, 1, 2] and [[card.item for card in cards] for cards in given.cards] == [[0, 10, 21]] * 3
    after = learn.get_preds()[0][[0, 10, 21]].flatten().tolist()
    assert [float(card.predicted) for card in given.cards[-1]] == pytest.approx(after, rel=1e-2, abs=1e-3)
    mine = new_learner(16, cbs=cbnb.Samples(2))
    mine.fit_distributed(1, n_process=2)
    assert mine.samples.epochs == [0] and len(mine.samples.cards[0]) == 2


# --- what is shown, and the controls


def test_the_controls_reach_all_processes(capsys):
    learn = new_learner(16, cbs=Steering, progress=True)
    seen, steering = {}, learn.steering

    def steps() -> int:
        return learn.recorder.last().n_steps if learn.running and learn.recorder.history.runs else 0

    def steer() -> None:
        wait_until(lambda: steps() > 4)
        steering.scale_lr(0.5)
        seen["scaled"] = steps()
        wait_until(lambda: steps() > seen["scaled"] + 8)
        steering.pause()
        time.sleep(0.7)
        seen["paused"] = steps()
        time.sleep(0.7)
        seen["held"] = steps()
        steering.resume()
        wait_until(lambda: steps() > seen["held"] + 2)
        seen["stopped"] = steps()
        steering.stop()

    thread = threading.Thread(target=steer, daemon=True)
    thread.start()
    learn.fit_distributed(10**4, n_process=2, cbs=Slowly())
    thread.join()
    run = learn.recorder.last()
    assert run.status == "cancelled" and seen["stopped"] <= run.n_steps <= seen["stopped"] + 60  # each takes 0.03 s at least
    assert seen["paused"] == seen["held"]
    lrs = run.hyper("lr")
    assert set(lrs[:3]) == {0.01} and set(lrs[-3:]) == {0.005}
    assert len(learn.recorder.history) == 1
    out = capsys.readouterr().out
    assert out.count("train_loss") == 1 and "stopped in epoch" in out and "planned lr × 0.5" in out
    learn.fit(1)


# --- trouble


class Oh(ValueError):
    """An error with a type of its own."""


class Fails(cbnb.Callback):
    """In one process, at the fourth batch; writes when."""

    def __init__(self, how: str, where: int, path: str):
        self.how, self.at, self.note = how, where, path

    def after_step(self):
        if self.learn.train_iter != 3 or rank() != self.at:
            return
        Path(self.note).write_text(str(time.time()))
        if self.how == "raise":
            raise Oh("no luck")
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "interrupt":
            os.kill(os.getpid(), signal.SIGINT)
        if self.how == "exit":
            os._exit(3)


@pytest.mark.parametrize(
    ("how", "where", "kind", "words"),
    [
        ("raise", 0, Oh, "no luck"),
        ("raise", 1, Oh, "no luck"),
        ("kill", 0, RuntimeError, "process 0 of 2 was ended by SIGKILL"),
        ("kill", 1, RuntimeError, "process 1 of 2 was ended by SIGKILL"),
        ("exit", 1, RuntimeError, "process 1 of 2 ended with exit code 3"),
    ],
)
def test_the_first_trouble_ends_all_and_the_learner_is_as_before(how, where, kind, words, tmp_path, started):
    learn = new_learner(16, num_workers=int(how == "kill"))
    before, attributes = weights(learn), {**vars(learn), "restore_points": learn.runs}
    with pytest.raises(kind, match=words) as error:
        learn.fit_distributed(2, n_process=2, cbs=Fails(how, where, str(tmp_path / "when")))
    assert time.time() - float((tmp_path / "when").read_text()) < 60  # it ends by itself, on a busy machine too
    wait_until(lambda: started.living() == [])  # a killed process ends a moment later
    assert len(started.pids) == 2
    if how == "raise":
        note = "\n".join(error.value.__notes__)
        assert f"raised in process {where} of 2" in note and "in after_step" in note and 'raise Oh("no luck")' in note
    assert torch.equal(weights(learn), before) and learn.opt is None and not learn.running
    assert vars(learn) == attributes and len(learn.recorder.history) == 0 and len(learn.runs) == 0


def press_when(*conditions: Callable[[], object]) -> None:
    """Ctrl-C in this process for each of these, once it is true; none may come late, for it would hit the next test."""

    def press() -> None:
        for condition in conditions:
            wait_until(condition)
            os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()


def test_an_interrupt_ends_all_at_the_same_batch_and_brings_the_state():
    learn = new_learner(16, progress=True)
    press_when(lambda: learn.running and learn.recorder.history.runs and learn.recorder.last().n_steps > 3)
    with pytest.raises(cbnb.FitInterrupted, match=r"stopped in epoch \d+( at (validation )?batch \d+)?; learn is usable"):
        learn.fit_distributed(10**4, n_process=2, cbs=Slowly())
    run = learn.recorder.last()
    assert run.status == "interrupted" and run.n_steps == learn.train_iter > 3 and len(learn.recorder.history) == 1
    assert {int(s["step"]) for s in learn.opt.state.values()} == {run.n_steps}
    assert learn.runs[-1].status == "interrupted"
    learn.fit(1)


def test_an_interrupt_of_one_process_ends_all(tmp_path):
    learn = new_learner(16, cbs=Distributed())  # one of its own, which is used
    with pytest.raises(cbnb.FitInterrupted, match="stopped in epoch 0 at batch 3"):
        learn.fit_distributed(2, n_process=2, cbs=Fails("interrupt", 1, str(tmp_path / "when")))
    assert time.time() - float((tmp_path / "when").read_text()) < 10
    assert learn.recorder.last().status == "interrupted" and learn.recorder.last().n_steps == 4


def test_a_second_interrupt_kills(tmp_path, started, monkeypatch):
    learn, watches, run = new_learner(16), [], launch._Watch.run
    before = weights(learn)
    monkeypatch.setattr(launch._Watch, "run", lambda self: watches.append(self) or run(self))

    class Hangs(cbnb.Callback):
        def after_step(self):
            (tmp_path / f"hangs {rank()}").touch()
            time.sleep(1000)

    press_when(
        lambda: (tmp_path / "hangs 0").exists() and watches[0].began,
        lambda: watches[0].interrupted,
    )
    begun = time.monotonic()
    with pytest.raises(cbnb.FitInterrupted, match="the processes were killed; learn is as it was before"):
        learn.fit_distributed(1, n_process=2, cbs=Hangs)
    assert time.monotonic() - begun < 100 and started.living() == []
    assert torch.equal(weights(learn), before) and len(learn.recorder.history) == 0 and learn.opt is None


def test_without_the_notebook_the_processes_end(tmp_path, started):
    code = f"""
        import os, sys, tempfile, time
        from pathlib import Path
        tempfile.tempdir = {str(tmp_path / "temporary")!r}
        import cbnb.all as cbnb
        from cbnb.toy import digits_learner

        class Waits(cbnb.Callback):
            def after_step(self):
                Path({str(tmp_path)!r}, f"pid {{os.getpid()}}").touch()
                time.sleep(1000)

        digits_learner().fit_distributed(1, n_process=2, cbs=Waits)
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdin=subprocess.DEVNULL)
    try:
        wait_until(lambda: len(list(tmp_path.glob("pid *"))) == 2, 100)
        started.pids = [int(path.name.split()[1]) for path in tmp_path.glob("pid *")]
        assert started.living() and list((tmp_path / "temporary").iterdir())
    finally:
        parent.kill()
        parent.wait()
    wait_until(lambda: not started.living() and not list((tmp_path / "temporary").iterdir()), 10)


# --- before anything is started


@pytest.fixture
def nothing_starts(monkeypatch) -> None:
    def start(*args, **kwargs):
        raise AssertionError("a process was started")

    monkeypatch.setattr(launch, "_start", start)


def test_wrong_calls_fail_at_once(nothing_starts):
    learn = new_learner(16)
    for error, words, n_epoch, kwargs in [
        (ValueError, "method='fitt' should be 'fine_tune', 'fit',", 1, dict(method="fitt")),
        (ValueError, "should be 'fine_tune'", 1, dict(method="validate")),
        (TypeError, "fit has no argument 'lrr': did you mean lr=", 1, dict(lrr=0.1)),
        (TypeError, "fit_distributed passes n_epoch=1 as epochs of fine_tune: leave out epochs=3", 1, dict(method="fine_tune", epochs=3)),
        (TypeError, "fit_sgdr needs the argument cycle_len: pass it", 1, dict(method="fit_sgdr")),
        (TypeError, "fine_tune has no argument 'freeze_epoch': did you mean freeze_epochs=", 1, dict(method="fine_tune", freeze_epoch=2)),
        (ValueError, "n_epoch='many' should be a whole number of epochs", "many", {}),
        (ValueError, "n_process=0 should be 1 or more", 1, dict(n_process=0)),
        (ValueError, "n_process=9 is too many: an epoch has 8 batches, and each process needs one", 1, dict(n_process=9)),
    ]:
        with pytest.raises(error, match=words):
            learn.fit_distributed(n_epoch, **kwargs)
    assert len(learn.runs) == 0 and len(learn.recorder.history) == 0
    with pytest.raises(RuntimeError, match="switched off"), torch.no_grad():
        learn.fit_distributed(1)


def test_each_process_needs_a_gpu_of_its_own(nothing_starts, monkeypatch):
    learn = new_learner(16)
    learn.dls.device = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert launch.process_count(learn, None) == 3
    with pytest.raises(ValueError, match="n_process=4 is too many: each process needs a GPU of its own, and this machine has 3 GPUs"):
        learn.fit_distributed(1, n_process=4)


def test_a_fit_in_a_callback_is_refused(nothing_starts):
    class Nests(cbnb.Callback):
        def after_batch(self):
            self.learn.fit_distributed(1)

    with pytest.raises(RuntimeError, match="already running .* cannot start a new fit"):
        new_learner(16).fit(1, cbs=Nests)


class Opens(torch.utils.data.Dataset):
    def __init__(self):
        self.handles = dict(log=open(os.devnull, "wb"))

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> tuple:
        return torch.zeros(4), torch.zeros(1)


def test_what_cannot_be_sent_is_named(nothing_starts):
    learn = new_learner(16)
    attributes = dict(vars(learn))
    with pytest.raises(TypeError, match=r"^cbs\[0\]\.lock cannot be sent to another process: cannot pickle .* first __getitem__"):
        learn.fit_distributed(1, cbs=[Locks()])
    learn.loss_func = lambda pred, y, lock=threading.Lock(): nn.functional.mse_loss(pred, y)
    with pytest.raises(TypeError, match=r"learn\.loss_func.*cannot be sent"):
        learn.fit_distributed(1)
    learn.loss_func = nn.MSELoss()
    learn.dls = cbnb.DataLoaders(DataLoader(Opens(), 2), device="cpu")
    with pytest.raises(TypeError, match=r"learn\.dls\.train\.dataset\.handles\['log'\] cannot be sent"):
        learn.fit_distributed(1)
    assert learn.opt is None and attributes.keys() == vars(learn).keys()


class Locks(cbnb.Callback):
    def __init__(self):
        self.lock = threading.Lock()


def test_without_cloudpickle_the_error_names_the_extra(nothing_starts, monkeypatch):
    from cbnb.distributed import worker

    worker._pickling.cache_clear()
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    try:
        with pytest.raises(ImportError, match=r'pip install "cbnb\[distributed\]"'):
            line_learner().fit_distributed(1)
    finally:
        worker._pickling.cache_clear()


def test_importing_names_loads_nothing_of_the_engine():
    code = "import sys, cbnb.all; print([m for m in ('accelerate', 'cloudpickle') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
