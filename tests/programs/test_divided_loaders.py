"""Two processes whose loaders have only their own items, of different lengths: a loop by hand takes both batches of a step together."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed import fsdp

import processes

pytest.importorskip("accelerate")

PROGRAM = """
import json, os, sys, warnings
import torch
import cbnb.all as cbnb
sys.path.insert(0, sys.argv[4])
from test_divided_loaders import loss_function, net, shard, valid

rank, folder, sharded, kind = int(os.environ["RANK"]), sys.argv[1], sys.argv[2] == "sharded", sys.argv[3]
torch.set_num_threads(1)

class Stream:      # has no length, but a position
    def __init__(self, batches): self.batches, self.at = batches, None
    def state_dict(self): return dict(at=self.at)
    def load_state_dict(self, state): self.at = state["at"]
    def __iter__(self):
        if self.at is None: self.at = 0
        while self.at < len(self.batches):
            self.at += 1
            yield self.batches[self.at - 1]
        if self.at: self.at = None

def leave(cb):
    if cb.epoch == 1 and cb.iter == 4: raise cbnb.CancelFitException     # process 0 has used up its three batches

def fit(cbs, resume):
    train, test = shard(rank), valid(rank)
    if kind == "stream": train, test = Stream(train), Stream(test)
    dls = cbnb.DataLoaders(train, test, device="cpu")
    keep = [cbnb.Recorder(train_metrics=True), cbnb.Checkpoint(every_steps=1, path=f"{folder}/kept")]
    learn = cbnb.Learner(dls, net(), loss_function(), opt_func=torch.optim.SGD, lr=0.1, metrics=cbnb.accuracy, cbs=[*keep, *cbs])
    learn.remove_cb(cbnb.ProgressCallback)
    with learn.distributed(divided=True, sharded=sharded):
        learn.logger = lambda row: None
        learn.fit(2, resume=resume)
    return learn

fit([cbnb.Callback(before_batch=leave)], resume=False)
learn = fit([], resume=True)
with learn.distributed(divided=True, sharded=sharded):
    n = learn.get_preds()[0].shape[0]
run = learn.recorder.last()
rows = [{k: v for k, v in row.items() if k != "time"} for row in run.epochs]
weights = [p for t in learn.model.parameters() for p in t.flatten().tolist()]
found = dict(losses=list(run.raw_losses), rows=rows, weights=weights, n=n, planned=learn.n_iter)

def look(cb):      # at loaders that are freed at once, so that the next one may have the same id
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found["looked"] = [len(cb.learn.get_preds(dl=shard(rank)[: n + rank])[0]) for n in (1, 3, 2)]

with learn.distributed(divided=True, sharded=sharded): learn.fit(1, cbs=cbnb.Callback(after_epoch=look))
open(f"{folder}/{rank}.json", "w").write(json.dumps(found))
"""
SIZES = [4, 3, 5], [6, 2, 4, 4, 1]  # items in the batches of each process
VALID_SIZES = [5, 5, 3], [7]


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def loss_function():
    return nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5]))


def batches(sizes, seed):
    make = torch.Generator().manual_seed(seed)
    return [(torch.randn(n, 4, generator=make), torch.randint(3, (n,), generator=make)) for n in sizes]


def shard(rank):
    return batches(SIZES[rank], rank)


def valid(rank):
    return batches(VALID_SIZES[rank], 10 + rank)


def joined(parts):
    return tuple(map(torch.cat, zip(*parts)))


def by_hand():
    model, loss_func = net(), loss_function()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    everything = joined([*valid(0), *valid(1)])
    losses, rows = [], []
    for _ in range(2):
        right = 0
        for i in range(max(map(len, SIZES))):
            x, y = joined([shard(rank)[i] for rank in range(2) if i < len(SIZES[rank])])
            pred = model(x)
            loss = loss_func(pred, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
            right += (pred.argmax(1) == y).sum().item()
        with torch.no_grad():
            pred = model(everything[0])
        rows.append(
            (loss_func(pred, everything[1]).item(), (pred.argmax(1) == everything[1]).float().mean().item(), right / sum(map(sum, SIZES)))
        )
    return losses, rows, [p for t in model.parameters() for p in t.detach().flatten().tolist()]


needs_shards = pytest.mark.skipif(not hasattr(fsdp, "fully_shard"), reason="this torch has no fully_shard")


@pytest.mark.parametrize("how, kind", [("whole", "lists"), pytest.param("sharded", "stream", marks=needs_shards)])
def test_weights_and_means_are_those_of_a_loop_by_hand(tmp_path, how, kind):
    processes.run_all(2, "-c", PROGRAM, str(tmp_path), how, kind, str(Path(__file__).parent), timeout=150)
    losses, rows, weights = by_hand()
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert found["losses"] == pytest.approx(losses, abs=1e-6) and found["weights"] == pytest.approx(weights, abs=1e-6)
        for row, expected in zip(found["rows"], rows, strict=True):
            assert [row[k] for k in ("valid_loss", "valid_accuracy", "train_accuracy")] == pytest.approx(expected, abs=1e-6)
        assert found["n"] == sum(map(sum, VALID_SIZES))
        assert found["looked"] == [12, 28, 19]
