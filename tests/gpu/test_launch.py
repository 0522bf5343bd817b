"""Fresh processes on GPUs: each has one of its own, and a notebook that has used its GPU already goes on with the result."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

pytest.importorskip("accelerate")
pytest.importorskip("cloudpickle")

import cbnb.all as cbnb

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


class NotesDevice(cbnb.Callback):
    def before_batch(self):
        self.device = str(next(self.learn.model.parameters()).device)


def new_learner() -> cbnb.Learner:
    torch.manual_seed(0)
    x = torch.randn(512, 8)
    train = DataLoader(TensorDataset(x, x[:, :1]), 16, shuffle=True)
    return cbnb.Learner(cbnb.DataLoaders(train, device="cuda"), nn.Linear(8, 1), nn.MSELoss(), lr=0.1)


@pytest.mark.parametrize("n", [1, None])
def test_each_process_has_a_gpu_and_the_learner_comes_back(n):
    learn, where = new_learner(), NotesDevice()
    learn.fit(1)
    device, before = learn.model.weight.device, learn.model.weight.detach().clone()
    learn.fit_distributed(2, n_process=n, cbs=where)
    n = n or torch.cuda.device_count()
    assert where.device == "cuda:0" and learn.model.weight.device == device
    assert learn.recorder.last().n_steps == 2 * -(-32 // n)
    assert not torch.equal(learn.model.weight, before) and learn.recorder.last().losses[-1] < 0.5
    assert all(s["exp_avg"].device == device for s in learn.opt.state.values())
    learn.fit(1)


def test_more_processes_than_gpus_are_refused():
    n = torch.cuda.device_count()
    with pytest.raises(ValueError, match=f"n_process={n + 1}: each process needs a GPU of its own, and this machine has {n} GPU"):
        new_learner().fit_distributed(1, n_process=n + 1)
