"""`LayerWatch`: dying units, sizes of updates, frozen layers. It leaves nothing behind, and says each finding once."""

import torch
from torch import nn

import cbnb
from cbnb.insight.layer_faults import LayerWatch, batches_until_next
from cbnb.insight.model_faults import units_at_0
from cbnb.toy import wave_learner


def net(dead=0):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 32), nn.ReLU(), nn.Linear(32, 1))
    nn.init.constant_(model[0].bias[:dead], -10.0)
    return model


def diagnosed(model, *cbs, **more):
    learn = wave_learner(model=model, **more)
    learn.fit(6, cbs=[LayerWatch(share=1e6), *cbs])
    return learn


def test_dying_units_and_the_nearest_healthy_neighbor():
    assert [(f.code, f.level, f.where) for f in diagnosed(net(30)).findings] == [("R6", "warning", "1")]
    assert [(f.code, f.level, f.where) for f in diagnosed(net(26)).findings] == [("R6", "note", "1")]
    assert diagnosed(net(16)).findings.codes == []  # half of the units are often dead in a healthy fit


def test_updates_as_large_as_the_weights():
    """`Moves` makes each update a share of the weights."""

    class Moves(torch.optim.SGD):
        share = 0.6

        @torch.no_grad()
        def step(self, closure=None):
            for p in self.param_groups[0]["params"]:
                p.mul_(1 - self.share)

    class Smaller(Moves):
        share = 0.3

    class Usual(Moves):
        share = 0.05

    levels = [{f.level for f in diagnosed(net(), opt_func=kind).findings if f.code == "R5"} for kind in (Moves, Smaller, Usual)]
    assert levels == [{"warning"}, {"note"}, set()]


def test_a_layer_that_is_not_updated():
    class Forgets(cbnb.Callback):
        order = 70

        def before_step(self):
            self.learn.model[0].weight.grad = None

    assert [(f.code, f.where) for f in diagnosed(net(), Forgets).findings if f.code == "R7"] == [("R7", "0.weight")]


def test_frozen_on_purpose_is_no_fault():
    model = net()
    model[0].requires_grad_(False)
    assert diagnosed(model).findings.codes == []


def test_updates_that_are_too_small():
    found = diagnosed(net(), opt_func=torch.optim.Adam, lr=1e-9).findings
    assert [f.where for f in found if f.code == "R5"] == ["0.weight", "2.weight"]


def test_it_changes_nothing_and_leaves_no_hook():
    with_it, without = net(), net()
    diagnosed(with_it)
    wave_learner(model=without).fit(6)
    assert all(torch.equal(a, b) for a, b in zip(with_it.parameters(), without.parameters()))
    assert not any(module._forward_hooks for module in with_it.modules())


def test_the_time_between_looks_follows_their_cost():
    assert batches_until_next(0.5, 1.0, 0.01) == 50 and batches_until_next(0, 1.0, 0.01) == 10


def test_units_of_three_dimensions_are_channels_or_features():
    out = torch.zeros(2, 5, 3)
    out[:, 1, 2] = 1
    assert units_at_0(out).tolist() == [True, False, True, True, True]
    assert units_at_0(out, channels=False).tolist() == [True, True, False]
