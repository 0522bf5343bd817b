"""Which library a callback was written for, by what its class body says; what then happens is in test_fastai_v1.py and test_mindspore.py."""

import functools

import pytest

import cbnb.all as cbnb
from cbnb.dialects import fastai_v1 as v1
from cbnb.dialects import mindspore as ms
from cbnb.dialects.detect import adapt, adapt_metric, dialect_of
from helpers import line_learner

BODIES = {
    "": None,
    "def other(self, run_context): pass": None,
    "def on_batch_end(self): pass": "fastai_v1",
    "def jump_to_epoch(self, epoch): pass": "fastai_v1",
    "on_batch_end = 3": None,
    "def on_train_step_end(self, run_context): pass": "mindspore",
    "def on_eval_epoch_begin(self, run_context): pass": "mindspore",
    "def on_eval_end(self, run_context): pass": "mindspore",
    "def epoch_end(self, run_context): pass": "mindspore",
    "def step_begin(self): pass": "mindspore",
    # both have these two
    "def on_train_begin(self, **kwargs): pass": "fastai_v1",
    "def on_train_end(self): pass": "fastai_v1",
    "def on_train_end(self, epoch): pass": "fastai_v1",
    "def on_train_end(self, state, *, loss=None): pass": "fastai_v1",
    "def on_train_end(self, run_context): pass": "mindspore",
    "def on_train_begin(self, context, *more): pass": "mindspore",
    "def on_train_begin(self, run_context): pass\n    def on_train_end(self): pass": "mindspore",
    # words that anybody may use
    "def begin(self, run_context): pass": "mindspore",
    "def end(self, context, more=None): pass": "mindspore",
    "def begin(self, *args): pass": "mindspore",
    "def begin(self): pass": None,
    "def begin(self, a, b): pass": None,
    "def begin(self): pass\n    def end(self, run_context): pass": "mindspore",
    "begin = staticmethod(lambda run_context: None)": "mindspore",
    "begin = staticmethod(lambda a, b: None)": None,
    "begin = classmethod(lambda cls, run_context: None)": "mindspore",
    "begin = 3": None,
    "begin = min": None,
    # what is declared
    "dialect = 'mindspore'\n    def on_batch_end(self): pass": "mindspore",
    "dialect = 'fastai_v1'\n    def begin(self, run_context): pass": "fastai_v1",
    "dialect = 'keras'\n    def on_batch_end(self): pass": "fastai_v1",
}


@pytest.mark.parametrize("body", BODIES)
def test_the_dialect_of_a_callback(body):
    space = {}
    exec(f"class Cb:\n    {body or 'pass'}", space)
    cls = space["Cb"]
    found = [dialect_of(cb) for cb in (cls, cls(), functools.partial(cls), functools.partial(functools.partial(cls)))]
    assert found == [BODIES[body]] * 4


def test_the_bases_declare_theirs():
    assert [dialect_of(cls) for cls in (v1.Callback, v1.LearnerCallback, ms.Callback)] == ["fastai_v1", "fastai_v1", "mindspore"]


def test_a_callback_of_two_dialects_is_refused():
    class Both:
        def on_epoch_begin(self): ...
        def on_batch_end(self): ...
        def step_end(self, run_context): ...
        def epoch_end(self, run_context): ...

    words = r"has methods of fastai v1 \(on_batch_end\) and of MindSpore \(epoch_end\)"
    with pytest.raises(TypeError, match=words):
        dialect_of(Both)


def test_a_base_class_decides_between_two_dialects():
    for base, dialect in ((v1.Callback, "fastai_v1"), (v1.LearnerCallback, "fastai_v1"), (ms.Callback, "mindspore")):

        class Both(base):
            def on_batch_end(self, **kwargs): ...
            def step_end(self, run_context): ...

        assert dialect_of(Both) == dialect


def test_what_is_adopted():
    class V1:
        def on_epoch_end(self, **kwargs): ...

    class Spore:
        def step_end(self, run_context): ...

    assert adapt(object()) is None and adapt_metric(object()) is None and adapt_metric(Spore()) is None
    one, other = adapt(cb := V1()), adapt(Spore)
    assert (
        one.wraps is cb
        and (one.name, str(one), repr(one)) == ("v1", "V1", "V1")
        and isinstance(other.wraps, Spore)
        and other.name == "spore"
    )
    assert isinstance(adapt_metric(V1()), v1.V1Metric)


def test_the_first_that_is_on_calls_all_of_its_dialect():
    calls = []

    class Note:
        def __init__(self, name):
            self.name = name

        def on_epoch_end(self, **kwargs):
            calls.append(self.name)

    class Spore:
        def on_train_epoch_end(self, run_context):
            calls.append("spore")

    learn = line_learner(cbs=[Note("a"), Spore()])
    peers = []
    learn.fit(
        1,
        cbs=[
            Note("b"),
            cbnb.Callback(before_fit=lambda self: peers.extend([*map(str, cb.peers)] for cb in self.learn.cbs if hasattr(cb, "peers"))),
        ],
    )
    assert calls == ["a", "b", "spore"] and sorted(peers) == [["Note", "Note"], ["Note", "Note"], ["Spore"]]


@pytest.mark.parametrize("method, library", [
    ("on_epoch_end(self, epoch, logs=None)", "Keras"),
    ("on_train_begin(self, logs=None)", "Keras"),
    ("on_train_epoch_end(self, trainer, pl_module)", "Lightning"),
    ("on_step_end(self, args, state, control, **kwargs)", "transformers"),
])  # fmt: skip
def test_a_callback_of_another_library_is_refused_by_its_name(method, library):
    space = {}
    exec(f"class Cb:\n    def {method}: pass", space)
    for cb in (space["Cb"], space["Cb"]()):
        with pytest.raises(TypeError, match=f"of {library} callbacks, which cbnb does not pass"):
            dialect_of(cb)
