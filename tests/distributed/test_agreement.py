"""The agreement of 8, 24 and 64 processes, as threads that exchange their messages in memory.

Real learners train with the real `Distributed`. Only what torch sends is replaced: an exchange takes place when all have come to one, and
if they have come to different ones, or one has ended, this is the deadlock that processes would wait in forever. Nothing depends on time.
"""

import copy
import random
import threading
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cbnb.all as cbnb
from cbnb.display.steering import Steering
from cbnb.distributed import agreement, data_parallel

PLACES = "before_epoch before_train before_batch after_pred after_loss before_backward after_step after_batch after_train".split()
PLACES += "before_validate after_validate after_epoch".split()
CANCELS = cbnb.CancelBatchException, cbnb.CancelTrainException, cbnb.CancelEpochException, cbnb.CancelFitException
IN_BATCH = PLACES[2:8]


class Deadlock(BaseException):
    """Processes would wait forever"""


class Hub:
    """What the processes send to each other"""

    def __init__(self, n: int):
        self.n, self.here, self.ended, self.dead = n, {}, set(), ""
        self.changed, self.results, self.store, self.local = threading.Condition(), {}, {}, threading.local()

    def exchange(self, kind: str, value):
        """The values of all processes, once all have come to this exchange"""
        with self.changed:
            rank = self.local.rank
            self.here[rank] = kind, value
            self._look()
            self.changed.wait_for(lambda: self.dead or rank in self.results)
            if self.dead:
                raise Deadlock(self.dead)
            return self.results.pop(rank)

    def end(self) -> None:
        with self.changed:
            self.ended.add(self.local.rank)
            self._look()

    def _look(self) -> None:
        if len(self.here) + len(self.ended) < self.n or not self.here:
            return
        kinds = {rank: kind for rank, (kind, _) in self.here.items()}
        if self.ended or len(set(kinds.values())) > 1:
            self.dead = f"ended: {sorted(self.ended)}, waiting: {kinds}"
        else:
            values = [self.here[rank][1] for rank in range(self.n)]
            self.results = dict.fromkeys(range(self.n), values)
            self.here = {}
        self.changed.notify_all()

    # what torch offers

    def broadcast(self, t, src=0, group=None):
        t.copy_(self.exchange("broadcast", t.clone())[src])

    def all_reduce(self, t, group=None):
        t.copy_(sum(self.exchange("all_reduce", t.clone())))

    def all_gather(self, each, mine, group=None, async_op=False):
        for t, value in zip(each, self.exchange("all_gather", mine.clone())):
            t.copy_(value)
        return SimpleNamespace(wait=lambda *_: None)

    def all_gather_object(self, each, value, group=None):
        each[:] = self.exchange("all_gather_object", value)

    def broadcast_object_list(self, values, src=0, group=None):
        values[:] = copy.deepcopy(self.exchange("broadcast_object_list", list(values))[src])

    def scatter_object_list(self, out, values, src=0, group=None):
        out[0] = copy.deepcopy(self.exchange("scatter_object_list", values)[src][self.local.rank])

    def barrier(self, group=None):
        self.exchange("barrier", None)

    def __next__(self):
        """The number of the run, which advances in each process"""
        self.local.run = getattr(self.local, "run", -1) + 1
        return self.local.run

    # the store

    def compare_set(self, key, old, new):
        with self.changed:
            return self.store.setdefault(key, new)

    def check(self, keys):
        return all(key in self.store for key in keys)

    def get(self, key):
        return self.store[key].encode()


class Averages(nn.Module):
    """In place of DistributedDataParallel: the mean of all gradients at the end of the backward pass"""

    def __init__(self, module: nn.Module, hub: Hub):
        super().__init__()
        self.module, self.hub = module, hub
        next(iter(module.parameters())).register_hook(self.queue)

    def queue(self, grad):
        torch.autograd.Variable._execution_engine.queue_callback(self.average)
        return grad

    @torch.no_grad()
    def average(self):
        params = list(self.parameters())
        mine = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten().double() for p in params])
        mean = sum(self.hub.exchange("gradients", mine)) / self.hub.n
        for p, grad in zip(params, mean.split([p.numel() for p in params])):
            p.grad = grad.view_as(p).to(p.dtype)

    def forward(self, call):
        return call()


@pytest.fixture
def in_threads(monkeypatch):
    """Run a function in n processes that are threads; what each returned"""

    def run(n: int, f):
        hub = Hub(n)
        for name in "broadcast all_reduce all_gather all_gather_object broadcast_object_list scatter_object_list barrier".split():
            monkeypatch.setattr(dist, name, getattr(hub, name))
        monkeypatch.setattr(dist, "is_initialized", lambda: True)
        monkeypatch.setattr(dist, "get_world_size", lambda group=None: n)
        monkeypatch.setattr(dist, "get_rank", lambda group=None: hub.local.rank)
        monkeypatch.setattr(dist, "get_backend", lambda group=None: "gloo")
        monkeypatch.setattr(agreement, "control_group", lambda: None)
        monkeypatch.setattr(agreement, "shared_store", lambda: hub)
        monkeypatch.setattr(data_parallel, "_runs", hub)
        monkeypatch.setattr(data_parallel, "own_random_state", lambda seed, number: None)  # threads share it
        here = SimpleNamespace(device=torch.device("cpu"), prepare_model=lambda m: Averages(m, hub))
        monkeypatch.setattr(data_parallel, "make_accelerator", lambda device, options: here)
        found = [None] * n

        def one(rank):
            hub.local.rank = rank
            try:
                found[rank] = f(rank)
            except BaseException as e:
                found[rank] = e
            finally:
                hub.end()

        threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(n)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()  # the hub ends them if they would wait forever
        return found

    return run


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.5, -0.5]))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        return x * self.w[0] + self.w[1]


def learner(n_items: int, bs: int, stream: bool) -> cbnb.Learner:
    x = torch.linspace(-1, 1, n_items)
    dl = DataLoader(TensorDataset(x, 2 * x + 1), bs)
    train = list(dl) if stream else dl  # a list has no sampler: process 0 loads for all
    learn = cbnb.Learner(cbnb.DataLoaders(train, dl, device="cpu"), Net(), nn.MSELoss(), opt_func=torch.optim.SGD, lr=0.1, cbs=Steering())
    return learn.remove_cb(cbnb.ProgressCallback)


def schedule(rng: random.Random, n: int) -> dict:
    """What some of the processes do, and when"""
    some = rng.sample(range(n), rng.choice([0, 1, 1, 2, n]))
    doing = {}
    for rank in some:
        what = "stop" if rank == 0 and rng.random() < 0.3 else rng.choice([ValueError("mine"), *CANCELS])
        where = rng.choice(IN_BATCH if what is cbnb.CancelBatchException else PLACES)
        if what is cbnb.CancelBatchException and where in ("after_step", "after_batch"):
            where = "before_backward"
        doing[rank] = what, where, rng.randrange(2), rng.randrange(3)
    return doing


def trained(rank: int, doing: dict, n_items: int, bs: int, stream: bool):
    what, where, epoch, batch = doing.get(rank, (None, "before_epoch", 0, 0))

    def act(cb) -> None:
        if cb.epoch != epoch or where in IN_BATCH and not (cb.training and cb.iter == batch):
            return
        if what == "stop":
            return cb.learn.steering.stop()
        if what is not None:
            raise what

    learn = learner(n_items, bs, stream)
    with learn.distributed(quiet=False):
        learn.logger = lambda row: None
        learn.fit(2, cbs=cbnb.Callback(**{where: act}))
        learn.fit(1)  # all are at the same place, so it goes on
    return learn.model.w.tolist()


def check(in_threads, n: int, seed: int) -> None:
    rng = random.Random(seed)
    doing, n_items, bs, stream = schedule(rng, n), rng.randrange(n, 6 * n), rng.choice([1, 2]), rng.random() < 0.25
    found = in_threads(n, lambda rank: trained(rank, doing, n_items, bs, stream))
    said = f"{n} processes, seed {seed}: {doing}, {n_items} items in batches of {bs}, {'a stream, ' * stream}{found[:3]}"
    assert not any(isinstance(e, Deadlock) for e in found), said
    failed = [isinstance(e, BaseException) for e in found]
    assert all(failed) or not any(failed), said
    if failed[0]:
        first = {str(e) for e in found}
        assert any(word in s for s in first for word in ("mine", "cancelled an update", "that it could cancel")), said
    else:
        assert all(w == found[0] for w in found), said


@pytest.mark.parametrize("seed", range(20))
def test_no_schedule_of_failures_and_cancels_parts_eight_processes(in_threads, seed):
    check(in_threads, 8, seed)


@pytest.mark.parametrize("n, seed", [(24, 1001), (64, 1002), (64, 1003)])
def test_nor_twenty_four_and_sixty_four(in_threads, n, seed):
    check(in_threads, n, seed)


def test_a_deadlock_is_found(in_threads):
    """Of the simulation itself: one process validates alone, by exchanges that nobody announces"""

    def alone(rank):
        if rank == 0:
            dist.barrier()

    assert isinstance(in_threads(2, alone)[0], Deadlock)
