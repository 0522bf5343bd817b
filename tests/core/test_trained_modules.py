"Loss functions and steps with parameters: what a loop written by hand does with `Adam([*model.parameters(), *loss.parameters()])`"

import copy
import warnings
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cbnb.all import EMA, Callback, Checkpoint, DataLoaders, EarlyStopping, GradientClip, Learner, SaveModel, load_learner
from cbnb.files.snapshot import snapshot
from cbnb.step import Step


class TaskWeights(nn.Module):
    "Two losses with learnt weights (Kendall et al., 2018)"

    def __init__(self):
        super().__init__()
        self.s = nn.Parameter(torch.tensor([0.3, -0.2]))

    def forward(self, pred, y):
        losses = torch.stack([F.mse_loss(pred[:, :1], y), F.l1_loss(pred[:, 1:], y)])
        return ((-self.s).exp() * losses + self.s).sum()


class ArcFace(nn.Module):
    "Class centers on the sphere, with an angle added to that of the target"

    def __init__(self, n_in=8, n_classes=3, margin=0.3, scale=8.0):
        super().__init__()
        self.centers, self.margin, self.scale = nn.Parameter(torch.randn(n_classes, n_in)), margin, scale

    def forward(self, pred, y):
        cos = F.normalize(pred) @ F.normalize(self.centers).T
        angle = torch.arccos(cos.clamp(-0.999, 0.999)) + self.margin * F.one_hot(y, len(self.centers))
        return F.cross_entropy(self.scale * angle.cos(), y)


class Distils(nn.Module):
    "Features of a frozen teacher, matched after a projection that is trained. The teacher has batch norm in evaluation mode"

    def __init__(self, n_in=4):
        super().__init__()
        self.teacher = nn.Sequential(nn.Linear(n_in, 5), nn.BatchNorm1d(5)).eval().requires_grad_(False)
        self.proj = nn.Linear(8, 5)

    def forward(self, pred, x):
        return F.mse_loss(self.proj(pred), self.teacher(x))


def batches(kind, n=4):
    torch.manual_seed(1)
    xs = [torch.randn(6, 4) for _ in range(n)]
    ys = dict(tasks=lambda x: x.sum(1, keepdim=True), faces=lambda x: x[:, :3].argmax(1), distils=lambda x: x)[kind]
    return [(x, ys(x)) for x in xs]


KINDS = dict(tasks=(TaskWeights, 2), faces=(ArcFace, 8), distils=(Distils, 8))


def parts(kind, seed=0):
    loss, n_out = KINDS[kind]
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, n_out)), loss()


def loop(model, loss, data, n_epoch, opt=None, clip=None, each=None):
    "The loop written by hand. Returns the optimizer and the losses"
    opt, losses = opt or torch.optim.AdamW([*model.parameters(), *loss.parameters()], lr=0.01), []
    for _ in range(n_epoch):
        model.train()
        for x, y in data:
            value = loss(model(x), y)
            value.backward()
            if clip:
                nn.utils.clip_grad_norm_([*model.parameters(), *loss.parameters()], clip)
            opt.step()
            opt.zero_grad()
            losses.append(value.item())
            if each:
                each()
    return opt, losses


def learner(model, loss, data, **kwargs):
    return Learner(DataLoaders(data, data), model, loss, lr=kwargs.pop("lr", 0.01), **kwargs)


def equal(a, b):
    sa, sb = a.state_dict(), b.state_dict()
    return sa.keys() == sb.keys() and all(torch.equal(sa[k], sb[k]) for k in sa)


def plain_adamw(params, **kwargs):
    return torch.optim.AdamW(params, foreach=False, **kwargs)


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_of_a_loss_are_trained_as_in_a_loop_written_by_hand(kind):
    data, (model, loss), (net, mine) = batches(kind), parts(kind), parts(kind)
    opt = torch.optim.AdamW([*net.parameters(), *mine.parameters()], lr=0.01)
    _, losses = loop(net, mine, data, 3, opt)
    learn = learner(model, loss, data, opt_func=plain_adamw)
    learn.fit(3)
    assert equal(model, net) and equal(loss, mine)
    assert all(p.grad is None for p in loss.parameters())


def test_a_loss_inside_a_partial_and_a_method_of_a_loss_are_trained():
    data = batches("tasks")
    for wrap in (partial, lambda loss: loss.forward):
        model, loss = parts("tasks")
        learner(model, wrap(loss), data).fit(1)
        assert not torch.equal(loss.s, torch.tensor([0.3, -0.2]))


def test_a_splitter_that_has_the_parameters_of_the_loss_gets_them_once():
    data, (model, loss) = batches("tasks"), parts("tasks")
    learn = learner(model, loss, data, splitter=lambda m: [[loss.s], m], lr=[0.5, 0.01])
    learn.fit(1)
    assert [len(g["params"]) for g in learn.opt.param_groups] == [1, 6]


def test_clipping_counts_the_parameters_of_the_loss():
    data, (model, loss), (net, mine) = batches("tasks"), parts("tasks"), parts("tasks")
    loop(net, mine, data, 2, torch.optim.AdamW([*net.parameters(), *mine.parameters()], lr=0.01), clip=0.5)
    learner(model, loss, data, opt_func=plain_adamw, cbs=GradientClip(0.5)).fit(2)
    assert equal(model, net) and equal(loss, mine)


def test_a_loss_that_is_assigned_later_joins_the_optimizer_and_the_moments_stay():
    data, (model, loss) = batches("tasks"), parts("tasks")
    learn = learner(model, lambda pred, y: F.mse_loss(pred[:, :1], y), data)
    learn.fit(1)
    opt = learn.opt
    learn.loss_func = loss
    learn.fit(1)
    assert learn.opt is opt and opt.state[model[0].weight]["step"] == 2 * len(data) and opt.state[loss.s]["step"] == len(data)


def test_an_optimizer_of_yours_without_the_parameters_of_the_loss_is_said():
    data, (model, loss) = batches("tasks"), parts("tasks")
    with pytest.warns(UserWarning, match="loss_func.s will not be trained"):
        learner(model, loss, data, opt_func=torch.optim.SGD(model.parameters(), 0.01), lr=0.01).fit(1)
    loss.requires_grad_(False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learner(model, loss, data, opt_func=torch.optim.SGD(model.parameters(), 0.01), lr=0.01).fit(1)


def test_a_frozen_loss_stays_frozen_after_unfreeze():
    data, (model, loss) = batches("distils"), parts("distils")
    before = copy.deepcopy(loss.teacher)
    learn = learner(model, loss, data, splitter=lambda m: [m[:2], m[2:]])
    learn.freeze()
    learn.fit(1)
    learn.unfreeze()
    learn.fit(1)
    assert equal(loss.teacher, before) and not loss.teacher[0].weight.requires_grad
    assert [len(g["params"]) for g in learn.opt.param_groups] == [4, 4]  # two of the last layer, two of the projection


class Projects(Step):
    "A step with a projection of its own"

    def __init__(self):
        torch.manual_seed(3)
        self.proj = nn.Linear(2, 1)

    def loss(self, learn):
        learn.loss_grad = F.mse_loss(self.proj(learn.pred), *learn.yb)
        learn.loss = learn.loss_grad.detach()


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_modules_of_a_step_are_trained():
    data, (model, _), (net, _) = batches("tasks"), parts("tasks"), parts("tasks")
    step, mine = Projects(), Projects().proj
    loop(net, lambda pred, y: F.mse_loss(mine(pred), y), data, 2, torch.optim.AdamW([*net.parameters(), *mine.parameters()], lr=0.01))
    learner(model, F.mse_loss, data, opt_func=plain_adamw, train_step=step).fit(2)
    assert equal(model, net) and equal(step.proj, mine)


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_modules_with_an_optimizer_in_the_step_are_left_to_it():
    data, (model, _) = batches("tasks"), parts("tasks")
    step = Projects()
    step.opt_proj = torch.optim.SGD(step.proj.parameters(), 0.1)
    before = copy.deepcopy(step.proj)
    learner(model, F.mse_loss, data, train_step=step).fit(1)
    assert equal(step.proj, before)


class NormedLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.drop, self.frozen = nn.BatchNorm1d(2), nn.Dropout(0.9), nn.BatchNorm1d(2).eval()

    def forward(self, pred, y):
        return (self.drop(self.frozen(self.norm(pred))).sum(1, keepdim=True) - y).square().mean()


def test_a_loss_is_evaluated_in_evaluation_mode():
    data, (model, _) = batches("tasks"), parts("tasks")
    loss = NormedLoss()
    learn = learner(model, loss, data)
    first, second = learn.validate()[0], learn.validate()[0]
    assert first == second and loss.norm.num_batches_tracked == 0
    learn.fit(2)
    assert loss.norm.num_batches_tracked == 2 * len(data) and loss.frozen.num_batches_tracked == 0
    assert loss.training and loss.norm.training and not loss.frozen.training
    with torch.no_grad():
        loss.eval(), model.eval()
        whole = sum(loss(model(x), y) for x, y in data) / len(data)
    assert learn.validate()[0] == pytest.approx(whole.item(), abs=1e-6)


# --- saving ---


@pytest.mark.parametrize("with_opt", [True, False])
def test_save_and_load_have_the_parameters_of_the_loss(tmp_path, with_opt):
    data, (model, loss) = batches("tasks"), parts("tasks")
    learn = learner(model, loss, data, path=tmp_path)
    learn.fit(2)
    learn.save("a", with_opt=with_opt)
    kept, valid = copy.deepcopy(loss), learn.validate()
    learn.fit(2)
    after = copy.deepcopy(loss)
    learn.load("a", with_opt=with_opt)
    assert equal(loss, kept) and learn.validate() == valid
    other = learner(*parts("tasks", seed=9), data, path=tmp_path)
    other.load("a", with_opt=with_opt)
    assert equal(other.loss_func, kept)
    other.fit(2)
    assert torch.equal(other.loss_func.s, after.s) == with_opt  # with the moments, the same two epochs again


def test_a_file_without_the_loss_is_read_and_said(tmp_path):
    data, (model, loss) = batches("tasks"), parts("tasks")
    learn = learner(model, loss, data, path=tmp_path)
    (tmp_path / "models").mkdir()
    torch.save(model.state_dict(), tmp_path / "models" / "old.pth")
    with pytest.warns(UserWarning, match="no state of loss_func, which stays as it was"):
        learn.load("old")
    learn.save("new")
    assert list(torch.load(tmp_path / "models" / "new.pth")) == ["model", "loss_func"]
    learn.loss_func = F.mse_loss
    with pytest.warns(UserWarning, match="also the state of loss_func, which this learner does not have"):
        learn.load("new")
    learn.save("plain", with_opt=False)
    assert torch.load(tmp_path / "models" / "plain.pth").keys() == model.state_dict().keys()  # files of plain losses are as they were


def test_a_file_whose_loss_does_not_fit_changes_nothing(tmp_path):
    data, (model, loss) = batches("tasks"), parts("tasks")
    learn = learner(model, loss, data, path=tmp_path)
    learn.fit(1)
    learn.save("a")
    loss.s = nn.Parameter(torch.zeros(3))
    before = copy.deepcopy(model)
    with torch.no_grad():
        before[0].weight += 1
        model[0].weight += 1
    with pytest.raises(RuntimeError, match="size mismatch for s"):
        learn.load("a")
    assert equal(model, before)


RATES = 0.05, 0.05, 0.05, 50.0  # the last epoch is far from the best


def best_in_a_loop(kind):
    "Weights of the epoch with the least validation loss, in a loop written by hand"
    data, (net, mine), best = batches(kind), parts(kind), (float("inf"), None)
    opt = torch.optim.AdamW([*net.parameters(), *mine.parameters()])
    for opt.param_groups[0]["lr"] in RATES:
        loop(net, mine, data, 1, opt)
        net.eval()
        with torch.no_grad():
            value = sum(mine(net(x), y).item() for x, y in data) / len(data)
        if value < best[0]:
            best = value, copy.deepcopy((net, mine))
    assert 2 * best[0] < value
    return best[1]


@pytest.mark.parametrize("cb", [lambda: SaveModel(), lambda: EarlyStopping(patience=9, restore=True)])
def test_the_best_epoch_comes_back_with_its_loss(tmp_path, cb):
    data, (model, loss) = batches("tasks"), parts("tasks")
    net, mine = best_in_a_loop("tasks")
    learn = learner(model, loss, data, path=tmp_path, opt_func=plain_adamw, cbs=cb())
    learn.fit(len(RATES), cbs=Callback(before_train=lambda cb: cb.opt.param_groups[0].update(lr=RATES[cb.epoch])))
    assert equal(model, net) and equal(loss, mine)


# --- averages, snapshots, checkpoints and exports ---


def test_ema_averages_the_parameters_of_the_loss():
    data, (model, loss), (net, mine) = batches("tasks"), parts("tasks"), parts("tasks")
    learner(model, loss, data, opt_func=plain_adamw, cbs=EMA(0.5, warmup=False)).fit(2)
    means = [p.detach().clone() for p in (*net.parameters(), *mine.parameters())]

    def average():
        with torch.no_grad():
            for m, p in zip(means, (*net.parameters(), *mine.parameters()), strict=True):
                m.lerp_(p, 0.5)

    loop(net, mine, data, 2, torch.optim.AdamW([*net.parameters(), *mine.parameters()], lr=0.01), each=average)
    for p, m in zip((*model.parameters(), *loss.parameters()), means, strict=True):
        assert torch.allclose(p, m, atol=1e-6)


class Stop(Exception):
    pass


def stop_at(step):
    def stop(cb):
        if cb.training and cb.learn.train_iter == step:
            raise Stop

    return Callback(after_batch=stop)


def resumed(make, n_epoch, step, **fit):
    "Fit without a break, and fit that breaks and is resumed by a new learner"
    whole = make("whole")
    whole.fit(n_epoch, **fit)
    broken, again = make("broken"), make("broken")
    with pytest.raises(Stop):
        broken.fit(n_epoch, cbs=[Checkpoint(every_steps=1), stop_at(step)], **fit)
    again.fit(n_epoch, resume=True, **fit)
    return whole, again


@pytest.mark.parametrize("step", [3, 4, 6])
def test_a_resumed_fit_has_the_parameters_and_moments_of_the_loss(tmp_path, step):
    data = batches("tasks")
    whole, again = resumed(lambda name: learner(*parts("tasks"), data, path=tmp_path / name), 3, step)
    assert equal(whole.model, again.model) and equal(whole.loss_func, again.loss_func)


class Hidden(nn.Module):
    "Truncated backpropagation: the hidden state of a batch is the first of the next"

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.rnn, self.out, self.h, self.n = nn.LSTM(4, 3, batch_first=True), nn.Linear(3, 1), None, 0

    def reset(self):
        self.h = None

    def forward(self, x):
        self.n += 1
        y, h = self.rnn(x[:, None], self.h)
        self.h = tuple(t.detach() for t in h)
        return self.out(y[:, 0]) * (1 + 0.01 * self.n)


@pytest.mark.parametrize("step", [2, 4, 7])
def test_tensors_and_counters_in_attributes_of_the_model_are_in_checkpoints(tmp_path, step):
    torch.manual_seed(1)
    data = [(torch.randn(6, 4), torch.randn(6, 1)) for _ in range(4)]
    make = lambda name: Learner(DataLoaders(data, data), Hidden(), F.mse_loss, lr=0.05, path=tmp_path / name)
    whole, again = resumed(make, 3, step)
    assert equal(whole.model, again.model) and whole.model.n == again.model.n
    assert all(map(torch.equal, whole.model.h, again.model.h))


def test_a_snapshot_restores_a_tensor_that_was_changed_in_place():
    class Keeps(nn.Linear):
        def forward(self, x):
            self.seen += 1
            return super().forward(x)

    model = Keeps(4, 1)
    model.seen = torch.zeros(())
    learn = Learner(DataLoaders(batches("tasks")), model, F.mse_loss)
    restore = snapshot(learn)
    learn.fit(1)
    assert model.seen == 4
    restore()
    assert model.seen == 0


class Thaws(Callback):
    "Gradual unfreezing in the middle of a fit"

    def before_epoch(self):
        self.learn.freeze_to(-1 if self.epoch < 1 else 0)


@pytest.mark.parametrize("step", [3, 6, 9])
def test_gradual_unfreezing_is_resumed(tmp_path, step):
    data = batches("tasks")
    make = lambda name: learner(*parts("tasks"), data, path=tmp_path / name, splitter=lambda m: [m[:2], m[2:]])
    whole, again = resumed(lambda name: make(name).add_cb(Thaws), 3, step)
    assert equal(whole.model, again.model) and equal(whole.loss_func, again.loss_func)


def test_rewind_takes_the_loss_back():
    data, (model, loss) = batches("tasks"), parts("tasks")
    learn = learner(model, loss, data)
    learn.fit(1)
    before = copy.deepcopy(loss)
    learn.fit(1)
    learn.rewind()
    assert equal(loss, before)


@pytest.mark.parametrize("name", ["a.cbnb", "a.pkl"])
def test_an_exported_learner_has_the_parameters_of_the_loss(tmp_path, name):
    data, (model, loss) = batches("tasks"), parts("tasks")
    learn = learner(model, loss, data, path=tmp_path)
    learn.fit(1)
    learn.export(name)
    new = dict(model=parts("tasks", 7)[0], loss_func=TaskWeights()) if name == "a.cbnb" else {}
    other = load_learner(tmp_path / name, trust=True, **new)
    assert equal(other.loss_func, loss) and equal(other.model, model)
    assert other.validate(dl=data) == learn.validate()


def test_summary_counts_the_parameters_of_the_loss():
    data, (model, loss) = batches("tasks"), parts("tasks")
    summary = learner(model, loss, data).summary()
    assert summary.rows[-1] == ("loss_func TaskWeights", "", "2", "yes")
    n = sum(p.numel() for p in model.parameters()) + 2
    assert f"{n} parameters, {n} of them trainable" in str(summary)


def test_parameters_of_the_loss_are_counted_and_frozen_with_the_last_group():
    data, (model, loss) = batches("tasks"), parts("tasks")
    learn = learner(model, loss, data, splitter=lambda m: [m[:2], m[2:]])
    with pytest.warns(UserWarning, match="all parameter groups are frozen"):
        learn.freeze_to(2)
    assert not loss.s.requires_grad
    learn.freeze()
    assert loss.s.requires_grad and not model[0].weight.requires_grad
