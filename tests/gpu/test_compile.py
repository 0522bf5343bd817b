"""Compile on a GPU: with triton, with CUDA graphs, and the losses of a plain fit."""

import copy

import pytest
import torch
from torch import nn

import cbnb.all as cbnb
from cbnb.callbacks.compile import Compile

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def fitted(n=4, cbs=(), sizes=(32, 32, 32, 32, 16)):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 4))
    x = torch.randn(sum(sizes), 16)
    batches = list(zip(x.split(sizes), (x[:, 0] > 0).long().split(sizes)))
    learn = cbnb.Learner(
        cbnb.DataLoaders(batches, batches[:2], device="cuda"),
        net,
        nn.CrossEntropyLoss(),
        lr=1e-3,
        default_cbs=False,
        cbs=[cbnb.Recorder, *cbs],
    )
    learn.logger = lambda row: None
    learn.fit(n)
    return learn


def losses(learn):
    return torch.as_tensor(learn.recorder.last().raw_losses).cpu()


@pytest.mark.parametrize("settings", [{}, dict(dynamic=True), dict(mode="max-autotune-no-cudagraphs")], ids=str)
def test_losses_are_those_of_a_plain_fit(settings):
    compiled = fitted(cbs=[Compile(**settings, verbose=False)])
    assert compiled.compile.report().failed is None and compiled.compile.report().compilations
    assert torch.allclose(losses(fitted()), losses(compiled), atol=1e-4)


def test_cuda_graphs_keep_what_callbacks_have_kept():
    class Keeps(cbnb.Callback):
        def __init__(self):
            self.kept = []

        def after_pred(self):
            self.kept.append((self.learn.pred, self.learn.pred.detach().clone()))

    keeps = Keeps()
    learn = fitted(n=6, cbs=[Compile(graphs=True, verbose=False), keeps], sizes=(32,) * 5)
    assert learn.compile.report().failed is None
    assert torch.allclose(losses(fitted(n=6, sizes=(32,) * 5)), losses(learn), atol=1e-4)
    assert all(torch.equal(pred, copy) for pred, copy in keeps.kept)


def test_cuda_graphs_with_accumulation_and_clip():
    def others():
        return [cbnb.GradientAccumulation(64), cbnb.GradientClip(0.1)]

    learn = fitted(cbs=[Compile(graphs=True, verbose=False), *others()])
    assert torch.allclose(losses(fitted(cbs=others())), losses(learn), atol=1e-4)


def test_the_model_is_plain_afterwards():
    learn = fitted(cbs=[Compile(verbose=False)])
    assert learn.model._compiled_call_impl is None and list(copy.deepcopy(learn.model).state_dict()) == list(learn.model.state_dict())
    learn.validate()
