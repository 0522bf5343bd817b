"""`?` answers: the docstring of whatever a user calls names its parameters, and what is returned and raised."""

import importlib
import inspect
import re

import pytest

import cbnb.all as cbnb
from docstrings import Module, with_docs
from helpers import EVENTS
from notebooks import LIB

CLASSES = (cbnb.Learner, cbnb.Recorder, cbnb.DataLoaders, cbnb.Callback)


def public() -> dict[str, object]:
    """What `cbnb.all`, the metrics, and the rooms of users have and can be called; the members of the classes that a user meets first."""
    modules = ["all", "metrics", "names.fastai"]
    modules += [f"{folder}.{path.stem}" for folder in ("callbacks", "files", "lr") for path in sorted((LIB / folder).glob("[!_]*.py"))]
    found = {}
    for module in (importlib.import_module(f"cbnb.{name}") for name in modules):
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
    args = text.partition("\nArgs:\n")[2].partition("\n\n")[0]
    assert re.findall(r"^    [*]{0,2}(\w+)", args, re.MULTILINE) == names


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
        "",
        "Raises:",
        "    ValueError: width={width} should be ... or more",
    ]
    assert inspect.getdoc(names["Line"]).splitlines() == ["One line", "", *inspect.getdoc(names["Base"]).splitlines()[2:6]]
    assert inspect.getdoc(names["Line"].cut).splitlines() == [
        "Cut it",
        "",
        "Args:",
        "    at: not at the ends",
        "",
        "Returns:",
        "    the two parts",
        "",
        "Raises:",
        "    IndexError: at is {at}, and the line has {width.value}",
    ]
    assert inspect.getdoc(names["alpha"]) == "A backslash: \\n\n\nAnd a paragraph\n\nArgs:\n    x"
    assert [names[name].__doc__ for name in ("Point", "one_line")] == ["Of no size", "Stays as it is"]
    assert names["Line"]._hidden.__doc__ == "Stays as it is"
    path.write_text(done)
    assert with_docs(Module(path)) == done  # and once more changes nothing
