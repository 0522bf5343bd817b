"""Which front end this is, and how things are shown there, with stand-ins for the kernels."""

import sys
from types import SimpleNamespace

import pytest

from cbnb.basics.text import say, shell
from cbnb.display import front_end as module
from cbnb.display.front_end import MODES, display_as, display_mode, front_end, set_display


class Kernel:
    def __init__(self, *missing, **settings):
        self._allow_stdin = True
        self.comm_manager = None
        vars(self).update(settings)
        for name in missing:
            delattr(self, name)


@pytest.fixture
def place(monkeypatch):
    """Pretend to be in the shell that is passed; None: in a script. Nothing is chosen."""

    def change(found, isatty=False):
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: found))
        monkeypatch.setattr(sys.stdout, "isatty", lambda: isatty, raising=False)

    monkeypatch.setattr(module, "_chosen", None)
    for name in ("CBNB_DISPLAY", "DATABRICKS_RUNTIME_VERSION"):
        monkeypatch.delenv(name, raising=False)
    change(None)
    return change


def notebook(*missing, **settings):
    return SimpleNamespace(kernel=Kernel(*missing, **settings), user_ns={})


def test_only_a_shell_with_a_kernel_is_a_notebook(place, monkeypatch):
    here = notebook()
    place(here)
    assert shell() is here
    place(SimpleNamespace(user_ns={}))  # IPython in a terminal
    assert shell() is None and front_end() is None
    monkeypatch.delitem(sys.modules, "IPython")
    assert shell() is None


def test_front_ends(place, monkeypatch):
    place(notebook())
    assert front_end() == "jupyter"
    place(notebook(_allow_stdin=False))
    assert front_end() == "headless"  # nobody could answer a question
    place(notebook("_allow_stdin"))
    assert front_end() == "jupyter"
    here = notebook()
    here.user_ns["__vsc_ipynb_file__"] = "a.ipynb"
    place(here)
    assert front_end() == "vscode"
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "15")
    assert front_end() == "databricks"
    monkeypatch.setitem(sys.modules, "google.colab", SimpleNamespace())
    assert front_end() == "colab"
    place(None)
    assert front_end() is None


def test_what_suits_the_place(place, monkeypatch):
    assert display_mode() == "lines"
    place(None, isatty=True)
    assert display_mode() == "terminal"
    place(notebook())
    assert display_mode() == "widgets"
    place(notebook("comm_manager"))
    assert display_mode() == "plain"
    place(notebook(_allow_stdin=False))
    assert display_mode() == "plain"
    place(notebook())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)  # ipywidgets is not installed
    assert display_mode() == "plain"


def test_what_was_chosen_comes_before_the_environment_and_that_before_the_place(place, monkeypatch):
    monkeypatch.setenv("CBNB_DISPLAY", "plain")
    assert display_mode() == "plain"
    set_display("terminal")
    assert display_mode() == "terminal"
    with pytest.raises(ZeroDivisionError), display_as("widgets"):
        assert display_mode() == "widgets"
        with display_as(None):
            assert display_mode() == "plain"
        assert display_mode() == "widgets"
        raise ZeroDivisionError
    assert display_mode() == "terminal"
    set_display(None)
    assert display_mode() == "plain"


def test_what_there_is_not_is_refused(place, monkeypatch):
    for wrong in ("", "widget"):
        with pytest.raises(ValueError, match=", ".join(map(repr, MODES[:3]))):
            set_display(wrong)
    assert display_mode() == "lines"
    monkeypatch.setenv("CBNB_DISPLAY", "widget")
    with pytest.raises(ValueError, match="'widget'"):
        display_mode()


def test_a_line_goes_above_a_progress_bar_if_there_is_one(monkeypatch, capsys):
    written = []
    monkeypatch.setitem(sys.modules, "tqdm", SimpleNamespace(tqdm=SimpleNamespace(write=written.append)))
    say("one")
    monkeypatch.delitem(sys.modules, "tqdm")
    say("two")
    assert written == ["one"] and capsys.readouterr().out == "two\n"
