"""`?` answers: the docstring of whatever a user calls names its parameters, and what is returned and raised; examples in it run alone."""

import ast
import importlib
import inspect
import re
import sys
import textwrap

import matplotlib.pyplot as plt
import pytest
import torch

import cbnb.all as cbnb
from docstrings import Module, _code, _qualname, _shown, with_docs
from helpers import EVENTS
from notebooks import LIB

CLASSES = (cbnb.Learner, cbnb.Recorder, cbnb.DataLoaders, cbnb.Callback)


def public() -> dict[str, object]:
    """What `cbnb.all` and `cbnb.names.fastai` have and can be called; the members of the classes that a user meets first."""
    found = {}
    for module in (importlib.import_module(f"cbnb.{name}") for name in ("all", "names.fastai")):
        found |= {name: member for name in module.__all__ if inspect.isroutine(member := getattr(module, name)) or inspect.isclass(member)}
    for cls in CLASSES:
        named = ((name, inspect.getattr_static(cls, name)) for name in dir(cls) if name[0] != "_" and name not in EVENTS)
        found |= {f"{cls.__name__}.{name}": member for name, member in named if callable(member) or isinstance(member, property)}
    return found


@pytest.mark.parametrize("name", public())
def test_a_docstring_names_every_parameter(name):
    member = public()[name]
    text = inspect.getdoc(member) or ""
    assert text
    if isinstance(member, property):
        return
    if isinstance(member, type) and issubclass(member, BaseException):
        return  # they take what every exception takes
    names = [parameter for parameter in inspect.signature(member).parameters if parameter not in ("self", "cls")]
    args = re.split(r"\n(?:Returns|Raises|Example):", text.partition("\nArgs:\n")[2])[0]
    assert re.findall(r"^    [*]{0,2}(\w+)", args, re.MULTILINE) in ([], names)  # tests/package/test_docs.py says where words are wanted


SOURCE = '''
class Base:
    "Has a width"
    def __init__(self,
        width: int = 2,     # in pixels,
                            # at least 1
        *names: str,
        **more: object,     # passed on
    ):
        if width < 1: raise ValueError(f"width={width!r} should be {1 if names else 2} or more")

class Line(Base):
    "One line"

    def cut(self,
        at: int,        # not at the ends
    ) -> list:          # the two parts
        "Cut it"
        def inner(): raise KeyError('not mine')
        if at < 0:
            raise IndexError('at is '
                             f'{at}, and the line has {self.width.value}') from None
        raise self.error(at)

    def _hidden(self, a): "Stays as it is"

class Point:
    "Of no size"

def one_line(a): "Stays as it is"

def \\N{GREEK SMALL LETTER ALPHA}(x: float) -> float:
    """A backslash: \\\\n

    And a paragraph
    """
    return x
'''.replace("\\N{GREEK SMALL LETTER ALPHA}", "alpha")


def test_comments_and_messages_become_sections(tmp_path):
    path = tmp_path / "made.py"
    path.write_text(SOURCE)
    done = with_docs(Module(path))
    names: dict = {}
    exec(done, names)
    assert inspect.getdoc(names["Base"]).splitlines() == [
        "Has a width",
        "",
        "Args:",
        "    width: in pixels, at least 1",
        "    *names",
        "    **more: passed on",
        "Raises:",
        "    ValueError: width={width} should be ... or more",
    ]
    assert inspect.getdoc(names["Line"]).splitlines() == ["One line", "", *inspect.getdoc(names["Base"]).splitlines()[2:6]]
    assert inspect.getdoc(names["Line"].cut).splitlines() == [
        "Cut it",
        "",
        "Args:",
        "    at: not at the ends",
        "Returns: the two parts",
        "Raises:",
        "    IndexError: at is {at}, and the line has {width.value}",
    ]
    assert inspect.getdoc(names["alpha"]) == "A backslash: \\n\n\nAnd a paragraph"
    assert [names[name].__doc__ for name in ("Point", "one_line")] == ["Of no size", "Stays as it is"]
    assert names["Line"]._hidden.__doc__ == "Stays as it is"
    assert _code(done) == _code(SOURCE) and "#" not in done.partition("def cut")[0]
    assert "    def __init__(self, width: int = 2, *names: str, **more: object):\n" in done
    assert "    def cut(self, at: int) -> list:\n" in done


def test_comments_stay_beside_the_parameters_of_what_users_do_not_reach(tmp_path):
    path = tmp_path / "made.py"
    path.write_text(SOURCE)
    done = with_docs(Module(path), {"Base": "Base(3)"}, {"Base", "one_line"})
    assert "        at: int,        # not at the ends\n" in done and "width: int = 2," in done and "# in pixels" not in done
    assert done.count("Args:") == done.count("Example:\n        Base(3)\n") == 1


def found_examples() -> list[tuple[str, str, str]]:
    """(module, name, lines) of each example in a docstring of the package."""
    found = []
    for path in sorted(LIB.rglob("[!_]*.py")):
        module = ".".join((LIB.name, *path.relative_to(LIB).with_suffix("").parts))
        for node, owner in _shown(ast.parse(path.read_text(encoding="utf-8"))):
            _, is_there, lines = ast.get_docstring(node).partition("\nExample:\n")
            found += [(module, _qualname(node, owner), textwrap.dedent(lines))] if is_there else []
    return found


def codes(module: str, name: str) -> set:
    """The code objects of a function, or of the methods that a class has from this package."""
    found = importlib.import_module(module)
    for part in name.split("."):
        found = inspect.getattr_static(found, part)
    if isinstance(found, type):
        functions = [f for base in found.__mro__ if base.__module__.startswith(LIB.name) for f in vars(base).values()]
    else:
        functions = [found]
    plain = (f.fget if isinstance(f, property) else getattr(f, "__func__", getattr(f, "func", f)) for f in functions)
    return {f.__code__ for f in map(inspect.unwrap, plain) if inspect.isfunction(f)}


@pytest.fixture(scope="module")
def names_of_all() -> dict[str, object]:
    found: dict[str, object] = {"__name__": "__main__"}
    exec("from cbnb.all import *", found)
    return found


@pytest.mark.parametrize("module, name, lines", found_examples(), ids=lambda text: text if "\n" not in text else "")
def test_an_example_runs_alone_and_calls_what_it_is_an_example_of(module, name, lines, names_of_all, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    wanted, called = codes(module, name), set()
    sys.setprofile(lambda frame, event, arg: called.add(frame.f_code) if frame.f_code in wanted else None)
    try:
        exec(lines, dict(names_of_all))
    finally:
        sys.setprofile(None)
        plt.close("all")
    assert called or f"raise {name}" in lines  # an exception has no code of its own
