"""MindSpore's data-parallel mode: the same script, in one process and in two."""

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
LOOP = """
step = {step}
items = x[:40].view(-1, get_group_size(), bs, 3)[:, get_rank()]
labels = data.tensors[1][:40].view(-1, get_group_size(), bs, 1)[:, get_rank()]
for batch in zip(items, labels): step(*batch)
"""


def both(program: str, mean: bool = True, lr: tuple[float, float] = (0.05, 0.05)) -> tuple[list[str], list[str]]:
    """What one process and two print; with a rate for each."""
    return tuple(in_processes(BEGIN.format(mean=mean, lr=lr[n - 1]) + program + SHOW, n=n, timeout=240) for n in (1, 2))


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
def test_a_model_trains_in_two_processes_as_in_one(network):
    """42 items in batches of 8: the last one is short. Losses, metrics, counts and weights."""
    (one,), two = both(MODEL.format(network=NETWORKS[network]))
    assert one.split()[:4] == ["6", "18", "3", "18"] and agree(one, mean(two))


def test_gradients_are_added_unless_the_mean_is_wanted():
    """That is MindSpore's default: with two devices it is as a rate of twice the size."""
    (one,), two = both(MODEL.format(network=NETWORKS["network, loss_fn, optimizer"]), mean=False, lr=(0.04, 0.02))
    assert agree(one, mean(two))


@pytest.mark.parametrize("step", ["TrainStep", "ms.TrainOneStepCell"])
def test_a_loop_by_hand_reduces_its_gradients(step):
    """The step of MindSpore's guide, and the one that is here, each process with its own items."""
    (one,), two = both(BY_HAND + LOOP.format(step=f"{step}(ms.WithLossCell(net, nn.MSELoss()), opt)"))
    assert len(one.split()) == 21 and agree(one, two[0]) and agree(one, two[1])


def test_a_step_with_a_reducer_of_its_own_in_a_model():
    """Its gradients are averaged twice, which changes nothing."""
    program = BY_HAND + "model = Model(TrainStep(ms.WithLossCell(net, nn.MSELoss()), opt))\nmodel.train(2, DataLoader(data, bs))"
    program = program.replace("data, bs", "TensorDataset(*data[:40]), bs")
    (one,), two = both(program)
    assert agree(one, two[0]) and agree(one, two[1])


def test_wrong_settings():
    with raises(ValueError, "parallel_mode='auto_parallel' is not one of stand_alone, data_parallel"):
        ms.set_auto_parallel_context(parallel_mode="auto_parallel")
    with raises(ValueError, "global_rank=1, and it is 0"):
        ms.set_auto_parallel_context(global_rank=1)
    with raises(ValueError, "'pipeline_stages' is not a setting here"):
        ms.get_auto_parallel_context("pipeline_stages")
    assert ms.get_auto_parallel_context("parallel_mode") == "stand_alone"
