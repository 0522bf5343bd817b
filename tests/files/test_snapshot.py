"""A snapshot puts back what was noted, into the same objects, as often as it is asked."""

from collections import deque

import pytest
import torch
from torch import nn

import cbnb.all as cbnb
from cbnb.files.snapshot import save_attributes, save_model, save_opt, snapshot
from helpers import Line, ab, line_learner, noting

other_net = Line()  # of a step below, which refers to it as a global


class Holds(nn.Module):
    """Containers of every kind in its attributes, and parts."""

    def __init__(self):
        super().__init__()
        self.body, self.line = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), Line()
        self.register_buffer("seen", torch.zeros(3))
        self.n, self.names = 1, ("a",)
        self.list, self.dict, self.set, self.deque = [1, 2], dict(a=1), {1}, deque([1], maxlen=5)


def test_containers_of_a_model_are_refilled_in_place():
    model = Holds()
    held = {k: getattr(model, k) for k in ("list", "dict", "set", "deque")}
    restore = save_model(model)
    for _ in range(2):
        model.list.append(3), model.dict.update(a=2, b=3), model.set.add(2), model.deque.append(2)
        model.n, model.names, model.extra = 2, (), "new"
        restore()
        assert (model.list, model.dict, model.set, model.deque) == ([1, 2], dict(a=1), {1}, deque([1]))
        assert all(getattr(model, k) is v for k, v in held.items()) and model.deque.maxlen == 5
        assert (model.n, model.names) == (1, ("a",)) and not hasattr(model, "extra")
    model.list = [7]
    restore()
    assert model.list is held["list"] == [1, 2]


def test_parts_of_a_model_come_back_as_the_same_objects():
    model = Holds()
    parts = dict(model.named_modules()), dict(model.named_parameters()), dict(model.named_buffers())
    restore = save_model(model)
    model.line = nn.ReLU()
    model.body.append(nn.Linear(2, 2))
    model.body[0].weight = nn.Parameter(torch.ones(2, 2))
    model.body[0].register_parameter("extra", nn.Parameter(torch.ones(1)))
    model.seen = torch.ones(3)
    model.register_buffer("more", torch.ones(1))
    restore()
    now = dict(model.named_modules()), dict(model.named_parameters()), dict(model.named_buffers())
    assert all(a.keys() == b.keys() and all(a[k] is b[k] for k in a) for a, b in zip(parts, now))


def test_weights_and_gradients_come_back_into_their_memory():
    model = Line()
    model.fixed = nn.Parameter(torch.ones(2), requires_grad=False)
    model(torch.ones(3)).sum().backward()
    model.b.grad, grad = None, model.a.grad
    memory = model.a.data_ptr(), grad.data_ptr()
    restore = save_model(model)
    for _ in range(2):
        with torch.no_grad():
            model.a.add_(1), model.fixed.add_(1), grad.add_(1)
        model.b.grad, model.a.grad = torch.ones(()), None
        model.a.requires_grad_(False), model.fixed.requires_grad_(True)
        restore()
        assert (model.a.item(), model.fixed.tolist(), model.a.grad.item()) == (0, [1, 1], 3)
        assert model.a.grad is grad and model.b.grad is None and (model.a.data_ptr(), grad.data_ptr()) == memory
        assert (model.a.requires_grad, model.b.requires_grad, model.fixed.requires_grad) == (True, True, False)


def test_an_expanded_buffer_comes_back_though_it_cannot_be_written():
    model = Line()
    model.register_buffer("same", torch.ones(1).expand(3))
    restore = save_model(model)
    restore()
    assert model.same.tolist() == [1, 1, 1]


def test_lazy_layers_are_refused():
    with pytest.raises(ValueError, match="lazy layers, and the shape of .* is not known yet: call model"):
        save_model(nn.Sequential(nn.Linear(2, 2), nn.LazyLinear(2)))


def test_an_optimizer_comes_back_with_its_groups_and_state():
    model, other = Line(), nn.Parameter(torch.zeros(()))
    opt = torch.optim.Adam([dict(params=[model.a], lr=0.1), dict(params=[model.b], lr=0.2)], betas=(0.9, 0.99))

    def update():
        opt.zero_grad()
        model(torch.ones(2)).sum().backward()
        opt.step()

    update()
    groups, restore, moment = list(opt.param_groups), save_opt(opt), opt.state[model.a]["exp_avg"].item()
    for _ in range(2):
        update()
        opt.add_param_group(dict(params=[other]))
        opt.param_groups[0].update(lr=5, initial_lr=7)
        opt.param_groups[1]["params"].append(other)
        opt.state[other] = dict(step=1)
        del opt.state[model.b]
        restore()
        assert len(opt.param_groups) == 2 and all(a is b for a, b in zip(groups, opt.param_groups))
        assert [g["lr"] for g in groups] == [0.1, 0.2] and "initial_lr" not in groups[0] and groups[0]["betas"] == (0.9, 0.99)
        assert [len(g["params"]) for g in groups] == [1, 1] and groups[1]["params"][0] is model.b
        assert set(opt.state) == {model.a, model.b} and opt.state[model.a]["exp_avg"].item() == moment
        assert opt.state[model.a]["step"].item() == opt.state[model.b]["step"].item() == 1


def test_attributes_come_back_and_what_is_shared_or_cannot_be_copied_is_kept():
    class Thing:
        def method(self):
            pass

    thing, shared, opt = Thing(), [1], torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    thing.list, thing.nested, thing.shared = [1], dict(a=[1]), dict(it=shared)
    thing.generator, thing.opt, thing.bound = (i for i in range(3)), opt, thing.method
    kept = dict(vars(thing))
    restore = save_attributes(thing, [shared])
    for _ in range(2):
        thing.list.append(2), thing.nested["a"].append(2), thing.shared.update(more=1), shared.append(2)
        thing.generator = thing.opt = thing.bound = None
        thing.extra = 1
        restore()
        assert thing.list == [1] and thing.nested == dict(a=[1]) and not hasattr(thing, "extra")
        assert thing.shared["it"] is shared and set(thing.shared) == {"it"}
        for name in ("list", "nested", "shared", "generator", "opt", "bound"):
            assert getattr(thing, name) is kept[name] or name == "bound" and thing.bound == kept["bound"]
    assert shared == [1, 2, 2]


def test_a_container_that_became_something_else_is_put_back_as_it_was():
    class Thing:
        value = None

    thing = Thing()
    thing.value = value = [1]
    restore = save_attributes(thing)
    thing.value = dict(a=1)
    restore()
    assert thing.value is value and value == [1]


def test_a_list_of_what_cannot_be_copied_keeps_it():
    class Thing:
        pass

    thing, generator = Thing(), (i for i in range(3))
    thing.list = held = [generator]
    restore = save_attributes(thing)
    thing.list = None
    restore()
    assert thing.list is held and held == [generator]


class Counts(cbnb.Callback):
    def __init__(self):
        self.n, self.list = 0, []

    def after_batch(self):
        self.n += 1
        self.list.append(self.n)


class CountsFits(Counts):
    run_in = ("fit", "validate")


def test_a_learner_comes_back_with_its_callbacks():
    """A callback that takes no part in a sweep keeps what it has seen, and so does one that is named."""
    learn = line_learner(cbs=[Counts(), CountsFits(), named := Counts.__new__(type("Named", (Counts,), {}))])
    named.n, named.list = 0, []
    before, names, counts = learn.cbs, dict(learn.callbacks.names), learn.counts.list
    restore = snapshot(learn, exclude=[named])
    for i in range(2):
        came = noting([])
        learn.add_cb(came).remove_cb(CountsFits)
        counts_fits = next(cb for cb in before if isinstance(cb, CountsFits))
        learn.fit(1)
        learn.marked, learn.lr, learn.counts.extra = True, 7, 1
        counts_fits.n = 10 + i
        restore()
        assert learn.cbs == before and learn.callbacks.names == names and learn.counts_fits is counts_fits
        assert came.learn is None and all(cb.learn is learn for cb in before)
        assert (
            not hasattr(learn, "marked")
            and not hasattr(learn, "callback")
            and learn.lr == 0.1
            and learn.opt is None
            and ab(learn) == (0, 0)
        )
        assert (learn.counts.n, learn.counts.list) == (0, []) and learn.counts.list is counts and not hasattr(learn.counts, "extra")
        assert counts_fits.n == 10 + i and named.n == 3 * (i + 1)
    seen = []
    learn.add_cb(noting(seen))
    learn.fit(1)
    assert learn.counts.n == 3 and counts_fits.n == 14 and seen.count("after_batch") == 3


def test_what_a_step_refers_to_comes_back():
    """In its closure, in containers there, as a global, as its owner, and in the owner's attributes."""
    in_closure, in_list, in_dict = Line(), Line(), Line()
    opt = torch.optim.SGD(in_closure.parameters(), lr=0.1)
    several, named, notes = [in_list], dict(net=in_dict), []

    def step(x, y):
        return [f(x) for f in (in_closure, several[0], named["net"], other_net)], opt, notes

    class Owner:
        def __init__(self):
            self.net, self.n, self.nets = Line(), 0, (Line(),)

        def evaluate(self, x, y):
            self.n += 1

    owner = Owner()
    learn = line_learner(train_step=step, eval_step=owner.evaluate)
    restore = snapshot(learn)
    nets = [in_closure, in_list, in_dict, other_net, owner.net, *owner.nets, learn.model]
    for net in nets:
        net.a.data.fill_(5)
        net.eval()
    opt.param_groups[0]["lr"], owner.n = 7, 7
    restore()
    assert [net.a.item() for net in nets] == [0] * 7 and all(net.training for net in nets)
    assert opt.param_groups[0]["lr"] == 0.1 and owner.n == 0 and owner.net is nets[4]


def test_modules_of_the_loss_and_random_state_come_back():
    class Weighted(nn.MSELoss):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

    generator = torch.Generator().manual_seed(3)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(4), torch.ones(4)), 2, shuffle=True, generator=generator)
    learn = line_learner(loss_func=Weighted(), dls=cbnb.DataLoaders(data, device="cpu"))
    restore, state = snapshot(learn), generator.get_state()
    learn.loss_func.scale.data.fill_(3)
    first = torch.rand(1), torch.rand(1, generator=generator)
    restore()
    assert learn.loss_func.scale.item() == 1 and torch.equal(generator.get_state(), state)
    assert first == (torch.rand(1), torch.rand(1, generator=generator))


def test_a_part_that_cannot_be_put_back_does_not_keep_the_others_from_it():
    model = Line()
    model.register_buffer("three", torch.zeros(3))
    learn = line_learner(cbs=Counts(), model=model)
    learn.fit(1)
    weights, restore = ab(learn), snapshot(learn)
    learn.add_cb(cbnb.GradientClip())
    learn.fit(1)
    learn.opt.param_groups[0]["lr"] = 7
    model.three.data = torch.zeros(2)
    with pytest.raises(RuntimeError):
        restore()
    assert learn.counts.n == 3 and learn.opt.param_groups[0]["lr"] == 0.1 and ab(learn) == weights
    assert not hasattr(learn, "gradient_clip") and all(cb.learn is learn for cb in learn.cbs)


class Critic(cbnb.Callback):
    """Has a network, a parameter, and an optimizer of both."""

    def __init__(self):
        self.net, self.scale = nn.Linear(1, 1), nn.Parameter(torch.ones(1))
        self.opts = [torch.optim.Adam([*self.net.parameters(), self.scale], 0.1)]

    def after_pred(self):
        if self.learn.training:
            (self.net(torch.ones(1, 1)) * self.scale).sum().backward()
            self.opts[0].step()


@pytest.mark.parametrize(
    "run", [lambda learn: learn.check(), lambda learn: learn.lr_find(), lambda learn: (learn.fit(1), learn.runs.take_back(1))]
)
def test_the_optimizer_of_a_callback_still_trains_its_network_after_a_run_that_is_undone(run):
    learn = line_learner(cbs=Critic())
    critic = learn.critic
    net, scale, weight = critic.net, critic.scale, critic.net.weight.detach().clone()
    run(learn)
    assert critic.net is net and critic.scale is scale and torch.equal(net.weight, weight) and scale == 1 and not critic.opts[0].state
    learn.fit(1)
    assert not torch.equal(critic.net.weight, weight) and critic.scale != 1


def test_the_record_of_a_fit_with_the_progress_display_is_kept():
    learn = line_learner(progress=True)
    learn.fit(1)
    restore = snapshot(learn)
    learn.fit(1)
    runs = list(learn.recorder.history.runs)
    restore()
    assert list(map(id, learn.recorder.history.runs)) == list(map(id, runs)) and len(runs) == 2
