"""MindSpore's data-parallel mode: the same scripts, in one process and in two."""

import json

import pytest

pytest.importorskip("accelerate", reason='training in several processes needs accelerate: pip install "cbnb[distributed]"')

from cbnb.dialects import mindspore as ms
from cbnb.toy import in_processes, raises

BEGIN = """
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from cbnb.dialects import mindspore as ms
from cbnb.dialects.mindspore import *

init()
context.set_auto_parallel_context(parallel_mode=ParallelMode.DATA_PARALLEL, gradients_mean={mean})
torch.manual_seed(0)
x = torch.randn(42, 3)
data = TensorDataset(x, x @ torch.tensor([[1.], [-2.], [.5]]) + .1)
net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
opt = torch.optim.SGD(net.parameters(), lr={lr}, momentum=.9)
bs = 8 // get_group_size()
"""
SHOW = """
print(*(f'{v:.6f}' for p in net.parameters() for v in p.flatten().tolist()))
"""
MODEL = """
class Sees(Callback):
    def __init__(self): self.losses = []
    def on_train_step_end(self, run_context):
        p = run_context.original_args()
        self.losses.append(float(p.net_outputs))
        self.last = p.parallel_mode, p.device_number, p.batch_num, p.cur_step_num, p.cur_epoch_num

model, sees, shuffled = Model({network}), Sees(), DataLoader(data, bs, shuffle=True)
valid = DataLoader(TensorDataset(x[:40], data.tensors[1][:40]), 5)
if model.loss_fn is None: model.train(3, shuffled, callbacks=sees)
else: model.fit(3, shuffled, valid, callbacks=sees)
found = model.eval(valid) if model.metrics else {{}}
print(*sees.last[2:], len(sees.losses), *(f'{{v:.6f}}' for v in (*sees.losses, *(found[name] for name in sorted(found)))))
assert sees.last[:2] == (('data_parallel', 2) if get_group_size() == 2 else ('stand_alone', 1))
"""
NETWORKS = {
    "network, loss_fn, optimizer": "net, nn.MSELoss(), opt, metrics={'loss', 'mae'}",
    "WithLossCell, optimizer": "ms.WithLossCell(net, nn.MSELoss()), optimizer=opt",
    "TrainOneStepCell": "ms.TrainOneStepCell(ms.WithLossCell(net, nn.MSELoss()), opt)",
}
BY_HAND = """
class TrainStep(nn.Module):
    "As in MindSpore's guide: gradients, reducer, optimizer"
    def __init__(self, network, optimizer):
        super().__init__()
        self.network, self.optimizer, self.weights = network, optimizer, list(network.parameters())
        self.reducer_flag = context.get_auto_parallel_context('parallel_mode') == ParallelMode.DATA_PARALLEL
        if self.reducer_flag:
            mean = context.get_auto_parallel_context('gradients_mean')
            degree = context.get_auto_parallel_context('device_num')
            self.grad_reducer = DistributedGradReducer(self.weights, mean, degree)
    def forward(self, *inputs):
        loss = self.network(*inputs)
        grads = torch.autograd.grad(loss, self.weights)
        if self.reducer_flag: grads = self.grad_reducer(grads)
        for p, grad in zip(self.weights, grads): p.grad = grad
        self.optimizer.step()
        return loss
"""
STEPS = "TrainStep", "ms.TrainOneStepCell"
LOOP = """
step = {step}
items = x[:40].view(-1, get_group_size(), bs, 3)[:, get_rank()]
labels = data.tensors[1][:40].view(-1, get_group_size(), bs, 1)[:, get_rank()]
for batch in zip(items, labels): step(*batch)
"""


REDUCES_TWICE = """
data = TensorDataset(*data[:40])
model = Model(TrainStep(ms.WithLossCell(net, nn.MSELoss()), opt))
model.train(2, DataLoader(data, bs))
"""


def script(program: str, mean: bool = True, lr: tuple[float, float] = (0.05, 0.05)) -> tuple[str, str]:
    """A program as one process runs it, and as two do; with a rate for each."""
    return tuple(BEGIN.format(mean=mean, lr=rate) + program + SHOW for rate in lr)


SCRIPTS = {
    **{network: script(MODEL.format(network=code)) for network, code in NETWORKS.items()},
    "sum": script(MODEL.format(network=NETWORKS["network, loss_fn, optimizer"]), mean=False, lr=(0.04, 0.02)),
    **{step: script(BY_HAND + LOOP.format(step=f"{step}(ms.WithLossCell(net, nn.MSELoss()), opt)")) for step in STEPS},
    "reduces twice": script(BY_HAND + REDUCES_TWICE),
}
RUN_ALL = """
import contextlib, io, json

said = {{}}
for name, program in json.loads({programs!r}).items():
    out = io.StringIO()
    with contextlib.redirect_stdout(out): exec(program, {{}})
    said[name] = out.getvalue()
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said() -> dict[int, list[dict[str, str]]]:
    """Number of processes -> what each prints, by script. Each number of processes is started once, for most of the time is their start."""
    found = {}
    for n in (1, 2):
        programs = json.dumps({name: versions[n - 1] for name, versions in SCRIPTS.items()})
        found[n] = [json.loads(out.splitlines()[-1]) for out in in_processes(RUN_ALL.format(programs=programs), n=n, timeout=240)]
    return found


def both(said: dict[int, list[dict[str, str]]], name: str) -> tuple[str, list[str]]:
    """What one process prints, and what two do."""
    return said[1][0][name], [printed[name] for printed in said[2]]


def numbers(said: str) -> list[float]:
    return [float(word) for word in said.split()]


def mean(two: list[str]) -> str:
    """What two processes say of their own items, the losses of the steps, as a mean; the rest must agree."""
    assert [row[22:] for row in map(numbers, two)] == [numbers(two[0])[22:]] * 2
    return " ".join(f"{(a + b) / 2}" for a, b in zip(*map(numbers, two)))


def agree(one: str, two: str) -> bool:
    a, b = numbers(one), numbers(two)
    return len(a) == len(b) > 20 and all(abs(x - y) < 5e-6 for x, y in zip(a, b))


@pytest.mark.parametrize("network", NETWORKS)
def test_a_model_trains_in_two_processes_as_in_one(said, network):
    """42 items in batches of 8: the last one is short. Losses, metrics, counts and weights."""
    one, two = both(said, network)
    assert one.split()[:4] == ["6", "18", "3", "18"] and agree(one, mean(two))


def test_gradients_are_added_unless_the_mean_is_wanted(said):
    """That is MindSpore's default: with two devices it is as a rate of twice the size."""
    one, two = both(said, "sum")
    assert agree(one, mean(two))


@pytest.mark.parametrize("step", STEPS)
def test_a_loop_by_hand_reduces_its_gradients(said, step):
    """The step of MindSpore's guide, and the one that is here, each process with its own items."""
    one, two = both(said, step)
    assert len(one.split()) == 21 and agree(one, two[0]) and agree(one, two[1])


def test_a_step_with_a_reducer_of_its_own_in_a_model(said):
    """Its gradients are averaged twice, which changes nothing."""
    one, two = both(said, "reduces twice")
    assert agree(one, two[0]) and agree(one, two[1])


def test_wrong_settings():
    with raises(ValueError, "parallel_mode='auto_parallel' should be 'stand_alone' or 'data_parallel'"):
        ms.set_auto_parallel_context(parallel_mode="auto_parallel")
    with raises(ValueError, "global_rank=1 should be 0"):
        ms.set_auto_parallel_context(global_rank=1)
    with raises(ValueError, "name='pipeline_stages' should be 'parallel_mode'"):
        ms.get_auto_parallel_context("pipeline_stages")
    assert ms.get_auto_parallel_context("parallel_mode") == "stand_alone"
