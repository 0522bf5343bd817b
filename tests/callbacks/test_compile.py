"""Compile: the model stays the user's own, the numbers stay those of a plain fit, and a failure of the compiler costs nothing."""

import copy
import pickle
import shutil
import traceback
import warnings

import pytest
import torch
from torch import nn

import cbnb.all as cbnb
from cbnb.callbacks.compile import Compile, CompileReport, _CallBefore25
from cbnb.callbacks.model_loss import ModelLossStep
from cbnb.step import Step
from helpers import line_learner, same_bits, seed


class Net(nn.Module):
    """Two layers with batch norm and dropout."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.drop, self.last = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2)

    def forward(self, x):
        return self.last(self.drop(self.norm(self.first(x)).relu()))


class BreaksAfterDropout(Net):
    """Dropout draws its numbers, then torch has to let Python run."""

    def forward(self, x):
        x = self.drop(self.norm(self.first(x)))
        torch._dynamo.graph_break()
        return self.last(x.sin())


def data(n=40, bs=16):
    g = torch.Generator().manual_seed(1)
    x = torch.randn(n, 4, generator=g)
    return list(zip(x.split(bs), (x[:, 0] > 0).long().split(bs)))


def learner(net=None, cbs=None, **kwargs):
    """16, 16 and 8 items for training, 20 for validation; random numbers begin anew."""
    seed()
    net = Net() if net is None else net() if isinstance(net, type) else net
    dls = kwargs.pop("dls", None) or cbnb.DataLoaders(data(), data(20, 20), device="cpu")
    settings = dict(loss_func=nn.CrossEntropyLoss(), lr=0.01, default_cbs=False) | kwargs
    learn = cbnb.Learner(dls, net, cbs=[cbnb.Recorder, *(cbs or [])], **settings)
    learn.logger = quiet
    seed(3)
    return learn


def quiet(row):
    pass


def quick(backend="eager", **kwargs):
    return Compile(backend=backend, verbose=False, **kwargs)


def fitted(net=None, cbs=None, n=2, **kwargs):
    learn = learner(net, cbs, **kwargs)
    learn.fit(n)
    return learn


def losses(learn):
    return [loss.item() for loss in torch.as_tensor(learn.recorder.last().raw_losses)]


def n_compiled(learn):
    return len(learn.compile.report().compilations)


def reasons(learn):
    return [c.why for c in learn.compile.report().compilations]


def fails(graph, inputs):
    raise RuntimeError("this backend knows no such operation")


def fails_from(n, calls):
    """A backend that compiles `n` graphs, and then no more."""

    def backend(graph, inputs):
        calls.append(graph)
        if len(calls) > n:
            raise RuntimeError("this backend knows no such operation")
        return graph.forward

    return backend


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


# --- the model stays the user's own ---


class InTheFit(cbnb.Callback):
    def __init__(self, look):
        self.look = look

    def after_batch(self):
        if self.training and not self.train_iter - 1:
            self.seen = self.look(self.learn)


def test_the_model_keeps_identity_class_and_names():
    net = Net()
    names = list(net.state_dict())
    look = InTheFit(lambda learn: (learn.model is net, type(learn.model), list(learn.model.state_dict()), net._compiled_call_impl))
    learn = fitted(net, [quick(), look])
    same, cls, during, call = look.seen
    assert same and cls is Net and during == names
    assert call is not None and net._compiled_call_impl is None and "_compiled_call_impl" not in vars(net)
    assert learn.model is net


def test_torch_compiles_in_place_by_the_same_attribute():
    net = Net()
    net.compile(backend="eager")
    assert "_compiled_call_impl" in vars(net)


def test_copies_and_pickles_in_a_fit_are_plain():
    look = InTheFit(lambda learn: (copy.deepcopy(learn.model), pickle.loads(pickle.dumps(learn.model))))
    fitted(cbs=[quick(), look])
    assert all(net._compiled_call_impl is None for net in look.seen)


@pytest.mark.parametrize("error", [RuntimeError("mine"), KeyboardInterrupt(), cbnb.CancelFitException()], ids=lambda e: type(e).__name__)
def test_the_model_is_plain_after_any_end(error):
    def stop(cb):
        if cb.train_iter == 1:
            raise error

    learn = learner(cbs=[quick(), cbnb.Callback(after_pred=stop)])
    try:
        learn.fit(1)
    except BaseException as e:
        assert type(e) is type(error) or isinstance(e, cbnb.FitInterrupted)
    assert learn.model._compiled_call_impl is None
    learn.remove_cbs([cb for cb in learn.cbs if type(cb) is cbnb.Callback])
    learn.fit(1)
    assert n_compiled(learn) > 0


def test_evaluation_between_fits_is_plain():
    learn = fitted(cbs=[quick()])
    n = n_compiled(learn)
    learn.validate()
    learn.get_preds()
    assert n_compiled(learn) == n


def test_validate_in_the_middle_of_a_fit():
    seen = []

    def validate(cb):
        if cb.training:
            seen.append(cb.learn.validate()[0])

    learn = fitted(cbs=[quick(), cbnb.Callback(after_batch=validate)], n=1)
    plain, compiled = list(seen), learn
    seen.clear()
    fitted(cbs=[cbnb.Callback(after_batch=validate)], n=1)
    assert seen == plain and compiled.model.training is not None


# --- the numbers are those of a plain fit ---


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("net", [Net, BreaksAfterDropout])
def test_numbers_are_those_of_a_plain_fit(backend, net):
    plain, compiled = fitted(net), fitted(net, [quick(backend)])
    assert n_compiled(compiled) >= 2
    assert losses(plain) == losses(compiled)
    assert same_bits(plain.model, compiled.model)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_the_loss_too(backend):
    plain, compiled = fitted(), fitted(cbs=[quick(backend, what="step")])
    assert n_compiled(compiled) >= 2 and losses(plain) == losses(compiled) and same_bits(plain.model, compiled.model)
    assert plain.recorder.last().epochs[-1]["valid_loss"] == compiled.recorder.last().epochs[-1]["valid_loss"]
    assert type(compiled.train_step) is Step and type(compiled.eval_step) is Step
    n = n_compiled(compiled)
    compiled.fit(1)
    assert n_compiled(compiled) == n
    compiled.loss_func = nn.CrossEntropyLoss(label_smoothing=0.1)
    compiled.fit(1)
    assert reasons(compiled)[0] == "the first batch" and n_compiled(compiled) >= 1


@pytest.mark.parametrize(
    "other",
    [
        lambda: cbnb.MixUp(),
        lambda: cbnb.GradientAccumulation(32),
        lambda: cbnb.Callback(after_pred=lambda cb: setattr(cb.learn, "pred", cb.pred * 2)),
        lambda: cbnb.Callback(after_pred=lambda cb: setattr(cb.learn, "yb", (1 - cb.y,))),
        lambda: cbnb.Callback(after_loss=lambda cb: setattr(cb.learn, "loss_grad", cb.loss_grad * 2)),
    ],
    ids=["mixup", "accumulation", "pred", "yb", "loss"],
)
def test_the_loss_too_together_with(other):
    plain, compiled = fitted(cbs=[other()]), fitted(cbs=[quick(what="step"), other()])
    assert losses(plain) == losses(compiled) and same_bits(plain.model, compiled.model)


def test_the_loss_too_falls_back():
    learn, seen = with_warnings(lambda: fitted(cbs=[quick(fails_from(1, []), what="step")]))
    assert len(seen) == 1 and same_bits(fitted().model, learn.model)


@pytest.mark.parametrize("step", [lambda: Squared(), lambda: lambda x, y: None], ids=["own", "function"])
def test_the_loss_too_is_refused_for_own_steps(step):
    with pytest.raises(ValueError, match="pass what='model' to compile only the model"):
        fitted(cbs=[quick(what="step")], train_step=step())
    with pytest.raises(ValueError, match="should be 'model' or 'step'"):
        Compile("loss")


@pytest.mark.parametrize(
    "others",
    [
        lambda: [cbnb.GradientAccumulation(32)],
        lambda: [cbnb.GradientClip(0.1)],
        lambda: [cbnb.GradientAccumulation(32), cbnb.GradientClip(0.1)],
        lambda: [cbnb.MixUp()],
        lambda: [cbnb.BnFreeze()],
        lambda: [cbnb.TerminateOnNaN()],
    ],
    ids=["accumulation", "clip", "both", "mixup", "bn_freeze", "nan"],
)
def test_together_with(others):
    plain, compiled = fitted(cbs=others()), fitted(cbs=[quick(), *others()])
    assert same_bits(plain.model, compiled.model) and losses(plain) == losses(compiled)


def test_one_cycle_and_fine_tune():
    def split(net):
        return [list(net.first.parameters()), [*net.norm.parameters(), *net.last.parameters()]]

    plain, compiled = learner(splitter=split), learner(cbs=[quick()], splitter=split)
    for learn in plain, compiled:
        seed(5)
        learn.fine_tune(1)
    assert same_bits(plain.model, compiled.model)
    assert any("frozen parameters, not" in why for why in reasons(compiled))


class WithLoss(Net):
    def forward(self, x, labels=None):
        logits = super().forward(x)
        return dict(loss=nn.functional.cross_entropy(logits, labels), logits=logits)


class Squared(Step):
    def loss(self, learn):
        super().loss(learn)
        learn.loss_grad = learn.loss_grad**2


@pytest.mark.parametrize("kind", ["model_loss", "function", "own_step", "train_step"])
def test_steps(kind):
    def made(cbs):
        net = WithLoss() if kind == "model_loss" else Net()
        loss = dict(loss_func=None) if kind == "model_loss" else {}
        step = {
            "model_loss": lambda: ModelLossStep(),
            "function": lambda: lambda x, y: nn.functional.cross_entropy(net(x), y),
            "own_step": Squared,
            "train_step": cbnb.TrainStep,
        }[kind]()
        return fitted(net, cbs, train_step=step, **loss)

    seed()
    plain = made([])
    seed()
    compiled = made([quick()])
    assert n_compiled(compiled) >= 2
    for a, b in zip(plain.model.parameters(), compiled.model.parameters()):
        assert a.shape == b.shape
    assert len(losses(plain)) == len(losses(compiled)) == 6


def test_several_losses_go_back_twice():
    if not hasattr(torch._functorch.config, "donated_buffer"):
        pytest.skip("this torch reuses no buffers")
    donated = torch._functorch.config.donated_buffer

    def made(cbs):
        net = seed() or Net()
        opts = [torch.optim.SGD(part.parameters(), lr=0.05) for part in (net.first, net.last)]
        step = cbnb.MultiLossStep(net, opts, lambda pred, y: (nn.functional.cross_entropy(pred, y), pred.square().mean()))
        return fitted(net, cbs, train_step=step, opt_func=torch.optim.AdamW, lr=1e-3)

    plain, compiled = made([]), made([quick("aot_eager")])
    assert same_bits(plain.model, compiled.model) and n_compiled(compiled) >= 2
    assert torch._functorch.config.donated_buffer == donated


def test_a_step_that_does_not_call_the_model_is_told():
    net = Net()
    with pytest.warns(UserWarning, match="does not call learn.model"):
        fitted(net, [quick()], train_step=lambda x, y: nn.functional.cross_entropy(net.last(net.first(x)), y), dls=[data()[0]])


# --- between fits ---


def test_code_is_kept_between_fits():
    learn = fitted(cbs=[quick()])
    n = n_compiled(learn)
    learn.fit(1)
    assert n_compiled(learn) == n


def test_lr_find_compiles_for_the_fit_and_leaves_no_trace():
    learn = learner(cbs=[quick()])
    before = copy.deepcopy(learn.model.state_dict())
    learn.lr_find(num_it=10, show_plot=False)
    assert all(torch.equal(before[k], v) for k, v in learn.model.state_dict().items())
    assert learn.model._compiled_call_impl is None
    n = n_compiled(learn)
    assert n >= 1
    learn.fit(1, cbs=cbnb.ShortEpoch(0.7))
    new = reasons(learn)[n:]
    assert not [why for why in new if "evaluation" not in why]


def test_freezing_compiles_once_more_and_says_so():
    learn = learner(cbs=[quick("aot_eager")])
    learn.fit(1)
    n = n_compiled(learn)
    learn.model.first.requires_grad_(False)
    learn.fit(1)
    assert "2 frozen parameters, not 0 frozen parameters" in reasons(learn)[n:]
    n = n_compiled(learn)
    learn.model.first.requires_grad_(True)
    learn.fit(1)
    assert n_compiled(learn) == n  # the first code fits again


def test_another_model_is_compiled():
    learn = fitted(cbs=[quick()])
    first = learn.compile.kept.call
    learn.model = Net()
    learn.fit(1)
    assert learn.compile.kept.call is not first and learn.compile.kept.call.model is learn.model


def test_rewind_keeps_the_code():
    learn = fitted(cbs=[quick()], n=1)
    n, before = n_compiled(learn), copy.deepcopy(learn.model.state_dict())
    learn.fit(1)
    learn.rewind()
    assert all(torch.equal(before[k], v) for k, v in learn.model.state_dict().items())
    learn.fit(1)
    assert n_compiled(learn) == n


def test_many_models_in_a_session():
    for _ in range(10):
        learn = fitted(cbs=[quick()], n=1)
        assert n_compiled(learn) >= 2 and learn.compile.report().failed is None


def test_reset_of_torch_between_fits():
    learn = fitted(cbs=[quick()])
    torch._dynamo.reset()
    learn.fit(1)
    assert learn.model._compiled_call_impl is None and learn.compile.report().failed is None


# --- files ---


def test_save_in_a_fit_has_plain_names(tmp_path):
    look = InTheFit(lambda learn: learn.save("mid"))
    learn = fitted(cbs=[quick(), look], path=tmp_path)
    assert list(torch.load(look.seen)["model"]) == list(learn.model.state_dict())


def test_best_model_and_plain_learner(tmp_path):
    learn = fitted(cbs=[quick(), cbnb.SaveModel(fname="best")], path=tmp_path)
    plain = learner(path=tmp_path)
    plain.load("best")
    assert same_bits(plain.model, learn.model) or plain.validate()[0] <= learn.validate()[0]


@pytest.mark.parametrize("first, then", [(True, False), (False, True), (True, True)], ids=["to_plain", "to_compiled", "both"])
def test_resume(tmp_path, first, then):
    whole = fitted(n=3)

    class Dies(cbnb.Callback):
        order = 90

        def after_batch(self):
            if self.training and self.train_iter == 5:
                raise KeyboardInterrupt

    def made(compiled, *cbs):
        return learner(cbs=[*([quick("aot_eager")] if compiled else []), *cbs], path=tmp_path)

    learn = made(first, cbnb.Checkpoint(every_steps=1))
    with pytest.raises(KeyboardInterrupt):
        learn.fit(3, cbs=Dies())
    again = made(then, cbnb.Checkpoint(every_steps=1))
    seed(99)
    again.fit(3, resume=True)
    assert same_bits(whole.model, again.model)


def test_a_checkpoint_does_not_bring_its_settings():
    eager, other = learner(cbs=[quick()]), learner(cbs=[quick("aot_eager", what="step")])
    eager.fit(1)
    other.compile.load_state_dict(eager.compile.state_dict())
    assert other.compile.settings["backend"] == "aot_eager" and other.compile.what == "step"
    assert other.compile.kept.call is None


def test_export_and_copy(tmp_path):
    learn = fitted(cbs=[quick()], path=tmp_path)
    other = copy.deepcopy(learn)
    assert other.compile.kept.call is None
    other.fit(1)
    assert n_compiled(other) >= 2
    loaded = cbnb.load_learner(learn.export("all.pkl"), trust=True)
    assert same_bits(loaded.model, learn.model) and loaded.compile.kept.call is None


# --- failures ---


def with_warnings(f):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        result = f()
    return result, [w for w in seen if "Compile" in str(w.message)]


@pytest.mark.parametrize("net", [Net, BreaksAfterDropout])
@pytest.mark.parametrize("n", [0, 1, 2])
def test_a_failing_backend_costs_nothing(net, n):
    plain = fitted(net)
    learn, seen = with_warnings(lambda: fitted(net, [quick(fails_from(n, []))]))
    assert same_bits(plain.model, learn.model) and losses(plain) == losses(learn)
    assert len(seen) == 1 and "knows no such operation" in str(seen[0].message)
    assert seen[0].filename == __file__
    _, again = with_warnings(lambda: learn.fit(1))
    assert not again and "knows no such operation" in learn.compile.report().summary()


def test_a_failing_backward_costs_nothing():
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    if not hasattr(torch._functorch.config, "force_non_lazy_backward_lowering"):
        pytest.skip("this torch compiles the backward pass when it is needed")
    backend = aot_autograd(fw_compiler=lambda graph, inputs: make_boxed_func(graph.forward), bw_compiler=fails)
    plain = fitted()
    learn, seen = with_warnings(lambda: fitted(cbs=[quick(backend)]))
    assert same_bits(plain.model, learn.model) and len(seen) == 1


def test_a_python_that_torch_does_not_know(monkeypatch):
    def refuses(*args, **kwargs):
        raise RuntimeError("torch.compile is not supported on Python 3.99+")

    monkeypatch.setattr(torch, "compile", refuses)
    learn, seen = with_warnings(lambda: fitted(cbs=[quick()]))
    assert len(seen) == 1 and "not supported on Python 3.99" in str(seen[0].message)
    monkeypatch.undo()
    assert same_bits(fitted().model, learn.model)


def test_no_compiler_is_told_with_the_remedy():
    with torch._inductor.config.patch({"cpp.cxx": ("/nonexistent/g++",), "fx_graph_cache": False}):
        learn, seen = with_warnings(lambda: fitted(cbs=[Compile(verbose=False)]))
    assert len(seen) == 1 and "apt install g++" in str(seen[0].message)
    assert same_bits(fitted().model, learn.model)


def test_an_unknown_backend_is_an_error():
    with pytest.raises(Exception, match="nonsense"):
        fitted(cbs=[quick("nonsense")])


class Wrong(Net):
    def forward(self, x):
        return self.last(x)  # 4 inputs, and it takes 8


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_an_error_in_the_model_is_at_its_line(backend):
    learn = learner(Wrong(), [quick(backend)])
    with pytest.raises(RuntimeError, match="mat1 and mat2") as caught:
        learn.fit(1)
    assert "_dynamo" not in "".join(traceback.format_exception(caught.value))
    assert any(frame.name == "forward" and "it takes 8" in (frame.line or "") for frame in traceback.extract_tb(caught.value.__traceback__))
    assert learn.model._compiled_call_impl is None


def test_ctrl_c_in_the_compiler():
    presses = [KeyboardInterrupt]

    def backend(graph, inputs):
        if presses:
            raise presses.pop()
        return graph.forward

    learn = learner(cbs=[quick(backend)])
    with pytest.raises(cbnb.FitInterrupted):
        learn.fit(1)
    assert learn.model._compiled_call_impl is None
    learn.fit(1)
    assert n_compiled(learn) >= 2 and learn.compile.report().failed is None


def test_fullgraph_is_an_error():
    with pytest.raises(RuntimeError, match="graph"):
        fitted(BreaksAfterDropout(), [quick(fullgraph=True)])


@pytest.mark.parametrize("wrap", [lambda net: torch.compile(net, backend="eager"), nn.DataParallel], ids=["compiled", "data_parallel"])
def test_models_that_are_refused(wrap):
    with pytest.raises(ValueError, match="already compiled|DataParallel"):
        fitted(wrap(Net()), [quick()])


def test_cuda_graphs_are_refused_on_the_cpu():
    with pytest.raises(ValueError, match="batches are on the CPU"):
        fitted(cbs=[Compile(graphs=True)])
    with pytest.raises(ValueError, match="but you passed backend='eager'"):
        Compile(backend="eager", graphs=True)


# --- hooks ---


def test_hooks_of_callbacks_switch_it_off_for_a_fit():
    stats = cbnb.ActivationStats()
    learn = learner(cbs=[quick()])
    _, seen = with_warnings(lambda: learn.fit(1, cbs=stats))
    assert len(seen) == 1 and "ActivationStats looks at its layers with hooks" in str(seen[0].message)
    assert n_compiled(learn) == 0 and stats.stats is not None
    _, seen = with_warnings(lambda: learn.fit(1))
    assert not seen and n_compiled(learn) >= 2


def test_hooks_that_come_with_an_event():
    class Adds(cbnb.Callback):
        def before_fit(self):
            self.n = 0
            handle = self.learn.model.last.register_forward_hook(self.count)
            self.learn.undo.callback(handle.remove)

        def count(self, *args):
            self.n += 1

    adds = Adds()
    learn = learner(cbs=[quick(), adds])
    _, seen = with_warnings(lambda: learn.fit(1))
    assert len(seen) == 1 and "new hooks on last" in str(seen[0].message) and adds.n == 4


def test_hooks_around_a_fit_fire_and_go():
    learn = learner(cbs=[quick()])
    calls = []
    with cbnb.Hook(learn.model.last, lambda m, inp, out: calls.append(1)):
        learn.fit(1)
    assert len(calls) == 4
    learn.fit(1)
    assert len(calls) == 4


# --- the report ---


def test_report_names_the_reasons():
    learn = fitted(cbs=[quick()])
    assert reasons(learn) == ["the first batch", "8 items, not 16 items", "evaluation mode"]
    where = [c.where for c in learn.compile.report().compilations]
    assert where == ["epoch 0, training batch 0", "epoch 0, training batch 2", "epoch 0, validation batch 0"]


def test_report_is_said_once(capsys):
    learn = learner(cbs=[Compile(backend="eager")])
    learn.fit(2)
    learn.fit(1)
    out = capsys.readouterr().out
    assert out.count("Compile: compiled 3 times in") == 1 and "no graph breaks" in out


def test_report_before_anything():
    assert repr(Compile().report()) == "nothing was compiled"


def test_report_escapes_html():
    report = learner(cbs=[quick()]).compile.report()
    report.breaks["<b>"] = 1
    assert "&lt;b&gt;" in report._repr_html_() and isinstance(report, CompileReport)


def test_other_compiled_functions_are_not_counted():
    f = torch.compile(lambda x: x + 1, backend="eager")
    learn = fitted(cbs=[quick(), cbnb.Callback(after_batch=lambda cb: f(torch.ones(cb.train_iter + 2)))])
    assert n_compiled(learn) == 3


def test_line_by_hand():
    learn = line_learner(cbs=[quick()])
    learn.fit(1)
    assert abs(learn.model.a.item() - 0.72) < 1e-5


# --- with a compiler ---


@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++") or shutil.which("cl")), reason="there is no C++ compiler")
def test_inductor():
    def net():
        seed()
        return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 2))

    plain, compiled = fitted(net()), fitted(net(), [Compile(options={"fallback_random": True}, verbose=False)])
    assert compiled.compile.report().failed is None and n_compiled(compiled) == 3
    assert torch.allclose(torch.tensor(losses(plain)), torch.tensor(losses(compiled)), atol=1e-5)


def test_code_of_torch_before_2_5_follows_frozen_parameters():
    """There, code made for frozen parameters gives them no gradient after they are unfrozen; the callback keeps code for each set."""
    net, x = nn.Linear(2, 1), torch.ones(3, 2)
    net._compiled_call_impl = call = _CallBefore25(net, net._call_impl, backend="aot_eager")
    net.weight.requires_grad_(False)
    net(x).sum().backward()
    assert net.weight.grad is None and net.bias.grad.item() == 3
    net.weight.requires_grad_(True)
    net(x).sum().backward()
    assert net.weight.grad.tolist() == [[3, 3]] and call.failed is None
    n = len(call.compilations)
    net.weight.requires_grad_(False)
    net(x)
    assert len(call.compilations) == n >= 2
