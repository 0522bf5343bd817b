"""A learner in one file that runs no code."""

import functools
import importlib
import os
import pickle
import random
import re
import subprocess
import sys
import textwrap
import types
import warnings
from functools import partial

import pytest
import torch
from torch import nn

import cbnb.all as cbnb
import processes
from cbnb.basics.nested import Held, from_json, to_json
from cbnb.callbacks.more_metrics import Accuracy
from cbnb.files import export
from cbnb.step import Step
from helpers import Line, line_batches, line_learner, same_bits


class Net(nn.Module):
    """With buffers, one of them not persistent."""

    def __init__(self):
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(3), nn.Linear(3, 2)
        self.register_buffer("scale", torch.ones(3), persistent=False)

    def forward(self, x):
        return self.out(self.norm(x * self.scale))


def net_learner(tmp_path, **kwargs):
    torch.manual_seed(0)
    data = [(torch.randn(8, 3), torch.randint(2, (8,))) for _ in range(4)]
    settings = dict(loss_func=nn.CrossEntropyLoss(label_smoothing=0.1), model=Net(), path=tmp_path) | kwargs
    return line_learner(dls=cbnb.DataLoaders(data, data[:2], device="cpu"), **settings)


def distance(pred, y):
    return (pred.argmax(1) - y).abs().float().mean()


def changed(path, **parts):
    """Write the file again with another content."""
    content = torch.load(path)
    state = from_json(content["state"], content["tensors"])
    text, tensors = to_json(state | parts)
    torch.save(dict(content, state=text, tensors=tensors), path)


def test_it_predicts_and_trains_as_the_learner_did(tmp_path):
    opt = partial(torch.optim.SGD, momentum=0.8)
    learn = net_learner(
        tmp_path, opt_func=opt, lr=0.05, wd=0.01, moms=(0.9, 0.8, 0.9), metrics=[cbnb.accuracy, cbnb.AccumMetric(cbnb.accuracy)]
    )
    learn.fit(2)
    learn.model.scale.fill_(2.0)
    file = learn.export("a.cbnb")
    assert file == tmp_path / "a.cbnb"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = cbnb.load_learner(file, model=Net)
    assert same_bits(loaded.model, learn.model) and loaded.model.scale.tolist() == [2, 2, 2]
    assert (loaded.lr, loaded.wd, loaded.moms, loaded.path) == (learn.lr, learn.wd, learn.moms, tmp_path)
    assert [m.name for m in loaded.metrics] == ["accuracy", "accuracy"]
    assert loaded.loss_func.label_smoothing == 0.1 and loaded.opt_func.keywords == {"momentum": 0.8}
    preds, targets = loaded.get_preds(dl=learn.dls.valid)
    assert torch.equal(preds, learn.get_preds()[0]) and torch.equal(targets, learn.get_preds()[1])
    x = torch.randn(3)
    assert torch.equal(loaded.predict(x)[1], learn.predict(x)[1])
    old, new = learn.recorder.history[0], loaded.recorder.history[0]
    assert new.epochs == old.epochs and list(new.losses) == list(old.losses)
    with pytest.raises(ValueError, match="training loader is empty"):
        loaded.fit(1)
    again = cbnb.load_learner(file, model=Net(), dls=learn.dls)
    learn.fit(1, reset_opt=True), again.fit(1)
    assert same_bits(again.model, learn.model) and len(again.recorder.history) == 2


def test_the_learner_stays_as_it_is(tmp_path):
    learn = net_learner(tmp_path, metrics=cbnb.AccumMetric(cbnb.accuracy))
    learn.fit(1)
    opt, metric, dls = learn.opt, learn.metrics[0], learn.dls
    learn.export("a.cbnb")
    assert learn.opt is opt and learn.metrics[0] is metric and learn.dls is dls and metric.batches
    content = torch.load(tmp_path / "a.cbnb", weights_only=True)
    assert set(content) == {"cbnb", "state", "tensors"} and all(t.device.type == "cpu" for t in content["tensors"])


IN_A_NEW_PROCESS = """
import sys, torch
from pathlib import Path
import cbnb.all as cbnb
from torch import nn
folder = Path(sys.argv[1])
"""


def in_a_process(code, folder):
    env = os.environ | dict(PYTHONPATH=os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
    code = textwrap.dedent(IN_A_NEW_PROCESS) + textwrap.dedent(code)
    return subprocess.run([*processes.python(), "-c", code, str(folder)], capture_output=True, text=True, env=env)


MODULE = """
from pathlib import Path
from torch import nn
Path(__file__).with_name("imported").touch()
def make_net(): return nn.Linear(3, 2)
def my_loss(pred, y): return nn.functional.cross_entropy(pred, y)
"""


def test_from_a_program_to_another_process(tmp_path):
    """A pickle refers to a class of __main__, which the other process has not."""
    code = """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(3, 2)
            def forward(self, x): return self.layer(x)
        def own_loss(pred, y): return nn.functional.cross_entropy(pred, y)
        data = [(torch.ones(8, 3), torch.zeros(8).long())]*2
        learn = cbnb.Learner(cbnb.DataLoaders(data, data, device='cpu'), Net(), own_loss, path=folder)
        with learn.no_bar(), learn.no_logging(): learn.fit(1)
        learn.export('a.cbnb')
        torch.save(learn.get_preds()[0], folder/'preds')
        try: learn.export('b.cbnb', factory=Net)
        except ValueError as e: print(e)
        """
    done = in_a_process(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "factory=Net cannot be imported by another process" in done.stdout and not (tmp_path / "b.cbnb").exists()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x):
            return self.layer(x)

    with pytest.raises(ValueError, match=r"has the weights of a Net, but not the code of this model: pass a model.*model=make_net"):
        cbnb.load_learner(tmp_path / "a.cbnb")
    loaded = cbnb.load_learner(tmp_path / "a.cbnb", model=Net)
    loaded.remove_cb(cbnb.ProgressCallback)
    assert torch.equal(loaded.get_preds(dl=[torch.ones(8, 3)] * 2)[0], torch.load(tmp_path / "preds"))
    with pytest.raises(
        ValueError, match=r"this learner has no loss_func, because own_loss could not be stored: call load_learner\(.*loss_func=...\)"
    ):
        loaded.validate(dl=[(torch.ones(8, 3), torch.zeros(8).long())])
    loaded = cbnb.load_learner(tmp_path / "a.cbnb", model=Net, loss_func=nn.CrossEntropyLoss())
    assert loaded.validate(dl=[(torch.ones(8, 3), torch.zeros(8).long())])[0] > 0


def test_what_is_imported_needs_trust(tmp_path):
    (tmp_path / "my_module.py").write_text(MODULE)
    code = """
        import my_module
        data = [(torch.ones(8, 3), torch.zeros(8).long())]*2
        learn = cbnb.Learner(cbnb.DataLoaders(data, data, device='cpu'), my_module.make_net(), my_module.my_loss, path=folder)
        learn.export('a.cbnb', factory=my_module.make_net)
        learn.export('b.cbnb', factory='my_module:make_net')
        """
    assert (done := in_a_process(code, tmp_path)).returncode == 0, done.stderr
    (tmp_path / "imported").unlink()
    code = """
        try: cbnb.load_learner(folder/'a.cbnb')
        except ValueError as e: print(e)
        loaded = cbnb.load_learner(folder/'a.cbnb', model=nn.Linear(3, 2))
        print((folder/'imported').exists(), loaded.loss_func)
        for name in 'ab':
            loaded = cbnb.load_learner(folder/f'{name}.cbnb', trust=True)
            print((folder/'imported').exists(), loaded.loss_func.__name__, type(loaded.model).__name__)
        """
    done = in_a_process(code, tmp_path)
    lines = done.stdout.splitlines()
    assert "creates its model with my_module:make_net, and importing that runs code" in lines[0] and "trust=True" in lines[0], done.stderr
    assert lines[1:] == ["False Missing(loss_func)", "True my_loss Linear", "True my_loss Linear"]


EVIL = {
    "a module of the system": "os:mkdir",
    "through torch": "torch.nn.modules.loss:F.torch.os.mkdir",
    "another room of torch": "torch.hub:load",
    "a deep one": "torch.optim.adam:torch.os.mkdir",
}


@pytest.mark.parametrize("part", ["loss_func", "opt_func", "metrics", "train_step"])
@pytest.mark.parametrize("path", EVIL.values(), ids=EVIL)
def test_a_path_cannot_lead_to_code(path, part, tmp_path):
    file = net_learner(tmp_path).export("a.cbnb")
    state = from_json(*[torch.load(file)[k] for k in ("state", "tensors")])
    evil = Held(path=path, words="a part", args=[str(tmp_path / "broken into")], kwargs={}, partial=False)
    inner = Held(path="torch.nn.modules.loss:CrossEntropyLoss", words="a part", args=[evil], kwargs={}, partial=False)
    for recipe in (evil, inner):
        changed(file, parts=state["parts"] | {part: [recipe] if part == "metrics" else recipe})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loaded = cbnb.load_learner(file, model=Net)
        assert loaded is not None and not (tmp_path / "broken into").exists()


def test_a_malicious_pickle_runs_nothing(tmp_path):
    class Payload:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "broken into"),)

    for content in (Payload(), dict(cbnb=1, state="{}", tensors=[Payload()])):
        torch.save(content, tmp_path / "a.cbnb")
        with pytest.raises((ValueError, pickle.UnpicklingError), match=r"a.cbnb"):
            cbnb.load_learner(tmp_path / "a.cbnb", model=Net, trust=True)
    assert not (tmp_path / "broken into").exists()


def test_no_damage_goes_unnoticed(tmp_path):
    learn = net_learner(tmp_path)
    learn.fit(1)
    file = learn.export("a.cbnb")
    whole, rand = file.read_bytes(), random.Random(0)
    flips = [rand.randrange(len(whole)) for _ in range(200)]
    damaged = [b"", b"hello", *(whole[: len(whole) * i // 20] for i in range(20))]
    damaged += [whole[:i] + bytes([whole[i] ^ 1 << rand.randrange(8)]) + whole[i + 1 :] for i in flips]
    refused = 0
    for content in damaged:
        file.write_bytes(content)
        try:
            loaded = cbnb.load_learner(file, model=Net)
        except ValueError as e:
            refused += 1
            assert f"{file} is damaged, or was not written by Learner.export" in str(e)
        else:  # padding, or a copy of what is elsewhere in the archive
            assert same_bits(loaded.model, learn.model)
    assert refused > 100


@pytest.mark.parametrize(
    "content, words",
    [
        (torch.ones(2), "is damaged, or was not written by Learner.export: it contains no learner"),
        (dict(model={}), "it contains no learner"),
        (dict(cbnb=2, state="", tensors=[]), "has format 2, but this cbnb reads format 1: update"),
        (dict(cbnb=1, state="{", tensors=[]), "is damaged, or was not written by Learner.export"),
        (dict(cbnb=1, state='{"a": {"!tensor": 3}}', tensors=[]), "is damaged, or was not written by Learner.export"),
    ],
)
def test_another_file_is_refused_by_name(content, words, tmp_path):
    torch.save(content, tmp_path / "a.cbnb")
    with pytest.raises(ValueError, match=words) as e:
        cbnb.load_learner(tmp_path / "a.cbnb", model=Net)
    assert str(tmp_path / "a.cbnb") in str(e.value)
    with pytest.raises(FileNotFoundError, match="nothing.cbnb"):
        cbnb.load_learner(tmp_path / "nothing.cbnb", model=Net)


def test_a_model_that_does_not_fit_is_refused_as_it_was(tmp_path):
    file = net_learner(tmp_path).export("a.cbnb")
    wrong = nn.Linear(3, 2)
    before = wrong.weight.clone()
    with pytest.raises(ValueError, match="a.cbnb does not fit the model: this module"):
        cbnb.load_learner(file, model=wrong)
    assert torch.equal(wrong.weight, before)
    with pytest.raises(TypeError, match="returned an int, not a model"):
        cbnb.load_learner(file, model=lambda: 3)


@pytest.mark.parametrize("wrap", [partial(torch.compile, backend="eager"), nn.DataParallel], ids=["compiled", "parallel"])
def test_a_wrapped_model_is_the_plain_one_in_the_file(wrap, tmp_path):
    learn = net_learner(tmp_path)
    plain = learn.model
    learn.model = wrap(plain)
    loaded = cbnb.load_learner(learn.export("a.cbnb"), model=Net)
    assert same_bits(loaded.model, plain)


def test_parts_that_are_not_loaded_are_named(tmp_path):
    class Mine(Step):
        pass

    learn = net_learner(
        tmp_path, metrics=[cbnb.AvgMetric(lambda pred, y: 0.0)], train_step=Mine(), opt_func=lambda p, lr: torch.optim.SGD(p, lr)
    )
    learn.fit(1)
    file = learn.export("a.cbnb")
    with pytest.warns(UserWarning) as seen:
        loaded = cbnb.load_learner(file, model=Net, dls=learn.dls)
    said = sorted(str(w.message) for w in seen)
    assert [s.split(",")[0] for s in said] == [
        "the learner was loaded without " + name for name in ("its train_step", "one of its metrics")
    ]
    assert all("could not be stored: call load_learner(" in s and ", model=..., " in s for s in said)
    assert {w.filename for w in seen} == {__file__}
    with pytest.raises(
        ValueError, match=r"this learner has no opt_func, because .* could not be stored: call load_learner\(.*opt_func=...\)"
    ):
        loaded.fit(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = cbnb.load_learner(file, model=Net, dls=learn.dls, metrics=distance, train_step=Step(), opt_func=torch.optim.SGD)
    loaded.remove_cb(cbnb.ProgressCallback)
    loaded.fit(1)
    assert [m.name for m in loaded.metrics] == ["distance"]


@pytest.mark.parametrize("change", ["the module is gone", "the function is gone", "the module has an error"])
def test_a_metric_that_cannot_be_imported_any_more_leaves_the_others(tmp_path, monkeypatch, change):
    module = tmp_path / "mymetrics.py"
    module.write_text("def distance(pred, y): return (pred - y).abs().mean()")
    monkeypatch.syspath_prepend(tmp_path)
    import mymetrics

    file = net_learner(tmp_path, metrics=[mymetrics.distance, cbnb.AvgMetric(mymetrics.distance), cbnb.accuracy]).export("a.cbnb")
    monkeypatch.delitem(sys.modules, "mymetrics")
    if change == "the module is gone":
        module.unlink()
    else:
        module.write_text({"the function is gone": "another = 1", "the module has an error": "1/0  # another text"}[change])
    importlib.invalidate_caches()
    with pytest.warns(UserWarning) as seen:
        loaded = cbnb.load_learner(file, model=Net, trust=True)
    sys.modules.pop("mymetrics", None)
    assert [m.name for m in loaded.metrics] == ["accuracy"] and len(seen) == 2
    why = "division by zero" if "error" in change else ".mymetrics:distance. cannot be imported: .*metrics=...\\)"
    assert all(re.match(f"the learner was loaded without one of its metrics: {why}$", str(w.message)) for w in seen)
    assert {w.filename for w in seen} == {__file__}


def test_a_metric_that_is_not_importable_leaves_the_others(tmp_path):
    learn = net_learner(
        tmp_path, metrics=[cbnb.accuracy, lambda pred, y: 0.0, cbnb.AccumMetric(cbnb.accuracy), cbnb.AvgMetric(lambda pred, y: 1.0)]
    )
    file = learn.export("a.cbnb")
    with pytest.warns(UserWarning) as seen:
        loaded = cbnb.load_learner(file, model=Net)
    assert [m.name for m in loaded.metrics] == ["accuracy", "accuracy"] and len(seen) == 2
    assert all("loaded without one of its metrics, because" in str(w.message) and "metrics=...)" in str(w.message) for w in seen)
    assert {w.filename for w in seen} == {__file__}


@pytest.mark.parametrize(
    "loss",
    [
        nn.MSELoss(reduction="sum"),
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0]), ignore_index=1),
        nn.BCEWithLogitsLoss(pos_weight=torch.tensor([3.0])),
        nn.HuberLoss(delta=0.5),
        nn.functional.cross_entropy,
    ],
    ids=lambda loss: str(getattr(loss, "__name__", loss)),
)
def test_losses_of_torch_come_back(loss):
    text, tensors = to_json(export.as_recipe(loss))
    recipe = from_json(text, tensors)
    assert export.lacks(recipe, "loss_func", trust=False) is None
    again = export.make_part(recipe)
    assert type(again) is type(loss)
    if isinstance(loss, nn.Module):
        plain = {k: v for k, v in vars(loss).items() if isinstance(v, (str, int, float))}
        assert {k: vars(again)[k] for k in plain} == plain
        assert {k: v.tolist() for k, v in again.named_buffers()} == {k: v.tolist() for k, v in loss.named_buffers()}


@pytest.mark.parametrize(
    "metric",
    [
        cbnb.accuracy,
        cbnb.AvgMetric(cbnb.accuracy, name="hits"),
        cbnb.AccumMetric(cbnb.accuracy, dim_argmax=-1, flatten=False),
        Accuracy(axis=1),
    ],
    ids=["function", "mean", "collected", "counted"],
)
def test_metrics_come_back(metric):
    [mine] = line_learner(metrics=metric).metrics
    [again] = line_learner(metrics=export.make_part(from_json(*to_json(export.as_recipe(mine))))).metrics
    assert (type(again), again.name) == (type(mine), mine.name)
    for name in ("func", "dim_argmax", "flatten", "axis"):
        assert getattr(again, name, None) == getattr(mine, name, None)


def test_a_failing_export_keeps_the_old_file(tmp_path):
    learn = net_learner(tmp_path)
    old = learn.export("deep/a.cbnb").read_bytes()
    learn.model = lambda x: x
    with pytest.raises(TypeError, match="has no weights to export"):
        learn.export("deep/a.cbnb")
    assert (tmp_path / "deep/a.cbnb").read_bytes() == old and os.listdir(tmp_path / "deep") == ["a.cbnb"]


def test_within_a_fit_it_is_refused(tmp_path):
    learn = line_learner(path=tmp_path)
    with pytest.raises(RuntimeError, match="this learner is running"):
        learn.fit(1, cbs=cbnb.Callback(after_epoch=lambda cb: cb.learn.export("a.cbnb")))
    assert not (tmp_path / "a.cbnb").exists()


def test_a_part_that_cannot_be_imported_is_named():
    with pytest.raises(
        ValueError, match=r"has no attribute 'Eve'. Install or correct the module, or call load_learner\(fname, opt_func=...\)"
    ):
        export.at_path("torch.optim.adam:Eve", "opt_func")


@pytest.mark.parametrize(
    "factory, words",
    [
        ("make_net", "should be of the form 'module:name'"),
        ("no_such_module:make", "cannot be imported.*Correct the path, or install the module$"),
        (lambda: 1, "cannot be imported by another"),
        ("torch.nn:Linear", "cannot be called without arguments .*'in_features'"),
        ("torch:pi", "is not a function or class"),
    ],
)
def test_a_factory_that_nobody_can_import_is_refused_at_export(factory, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        net_learner(tmp_path).export("a.cbnb", factory=factory)
    assert not (tmp_path / "a.cbnb").exists()


@pytest.mark.parametrize("model, words", [(3, "model=3 should be"), (torch.nn.Linear, "'in_features'"), (lambda: None, "returned None")])
def test_what_makes_no_model_is_a_type_error(model, words, tmp_path):
    file = net_learner(tmp_path).export("a.cbnb")
    with pytest.raises(TypeError, match=words):
        cbnb.load_learner(file, model=model)


@pytest.mark.parametrize("content, words", [(b"text", "damaged"), ([1], "contains a list"), (dict(a=1), "contains a dict, .* wrote$")])
def test_a_file_that_is_no_pickle_of_a_learner_is_not_called_one(content, words, tmp_path):
    """The advice was to trust it."""
    file = tmp_path / "a.pkl"
    file.write_bytes(content) if isinstance(content, bytes) else torch.save(content, file)
    with pytest.raises((TypeError, ValueError), match=words):
        cbnb.load_learner(file)


def test_a_pickle_has_no_other_parts(tmp_path):
    learn = line_learner(path=tmp_path)
    file = learn.export()
    with pytest.raises(
        TypeError, match="a pickle of the whole learner, so model= and metrics= cannot replace a part of it: call load_learner"
    ):
        cbnb.load_learner(file, trust=True, model=Line, metrics=distance)
    loaded = cbnb.load_learner(file, trust=True, dls=cbnb.DataLoaders(line_batches(2), device="cpu"))
    loaded.fit(1)


def n_words(pred, y):
    return (y != 0).sum()


def test_the_weight_of_a_batch_comes_back(tmp_path):
    learn = line_learner(path=tmp_path, batch_weight=nn.functional.mse_loss)
    path = learn.export("a.cbnb")
    for given in (dict(trust=True), dict(batch_weight=nn.functional.mse_loss)):
        assert cbnb.load_learner(path, model=Line, **given).batch_weight is nn.functional.mse_loss
    learn.batch_weight = lambda pred, y: len(y)
    path = learn.export("b.cbnb")
    with pytest.warns(UserWarning, match="loaded without its batch_weight"):
        assert cbnb.load_learner(path, model=Line).batch_weight is None
    learn.batch_weight = n_words
    assert cbnb.load_learner(learn.export("c.pkl"), trust=True).batch_weight is n_words


@pytest.mark.parametrize("module, word", [("cbnb.gone", "No module named 'cbnb.gone'"), ("cbnb.undo", "Can't get attribute 'Old'")])
def test_a_pickle_of_another_version_says_so(tmp_path, monkeypatch, module, word):
    place = sys.modules.get(module) or types.ModuleType(module)
    with monkeypatch.context() as there:
        there.setitem(sys.modules, module, place)
        there.setattr(place, "Old", type("Old", (cbnb.Callback,), dict(__module__=module, __qualname__="Old")), raising=False)
        file = line_learner(path=tmp_path, cbs=place.Old()).export()
    with pytest.raises(ValueError, match=r"was written by another version of cbnb \(.*\): load it with that version") as told:
        cbnb.load_learner(file, trust=True)
    assert word in str(told.value) and isinstance(told.value.__cause__, (ImportError, AttributeError))


def test_a_pickle_that_lacks_a_module_of_yours_keeps_the_error_of_python(tmp_path, monkeypatch):
    place = types.ModuleType("gone")
    with monkeypatch.context() as there:
        there.setitem(sys.modules, "gone", place)
        place.Mine = type("Mine", (cbnb.Callback,), dict(__module__="gone", __qualname__="Mine"))
        file = line_learner(path=tmp_path, cbs=place.Mine()).export()
    with pytest.raises(ModuleNotFoundError, match="No module named 'gone'"):
        cbnb.load_learner(file, trust=True)


@pytest.mark.parametrize(
    "name, words",
    [("net", r"not 'net': call learn.export\('net.cbnb'\)"), ("net.v1", "'net.v1.cbnb'"), ("net.onnx", r"torch.onnx.export\(learn.model")],
)
def test_a_name_without_a_known_ending_is_refused(tmp_path, name, words):
    with pytest.raises(ValueError, match=words):
        line_learner(path=tmp_path).export(name)
    assert not list(tmp_path.iterdir())


def test_a_loss_of_torch_as_a_metric_needs_no_trust(tmp_path):
    learn = line_learner(metrics=nn.L1Loss(), path=tmp_path)
    learn.export("line.cbnb")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = cbnb.load_learner(tmp_path / "line.cbnb", model=Line(), dls=learn.dls)
    assert [type(m.func) for m in loaded.metrics] == [nn.L1Loss]
    assert loaded.validate() == learn.validate()


def test_a_factory_whose_decorator_supplies_the_arguments_is_called():
    @functools.wraps(torch.nn.Linear)
    def make():
        return torch.nn.Linear(1, 1)

    assert export._unmet(make) is None
