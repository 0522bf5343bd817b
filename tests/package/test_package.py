"""What must hold for the package as a whole: its layers, its imports, its wheel, and the form of its notebooks."""

import ast
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
import venv
import zipfile
from configparser import ConfigParser
from email import message_from_bytes
from email.message import Message
from graphlib import TopologicalSorter
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
NBS = ROOT / "nbs"
LIB = ROOT / "cbnb"
NOTEBOOKS = sorted(path for path in NBS.rglob("*.ipynb") if not any(part[0] in "._" for part in path.relative_to(NBS).parts))
NUMBERED = sorted(NBS.glob("[0-9]*.ipynb"))

settings = ConfigParser()
settings.read(ROOT / "settings.ini", encoding="utf-8")
SETTINGS = settings["DEFAULT"]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def cells(notebook: Path) -> list[dict]:
    return [cell | {"source": "".join(cell["source"])} for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]]


def exported_module(notebook: Path) -> str | None:
    """The module that a notebook makes: `cbnb.learner`."""
    found = (re.search(r"^#\s*\|\s*default_exp\s+(\S+)", cell["source"], re.M) for cell in cells(notebook))
    return next((f"cbnb.{match[1]}" for match in found if match), None)


# the rooms, lowest first; `core` is nbs/ itself, and its notebooks are layers of their own, by their numbers
ROOMS = SETTINGS["rooms"].split()
EXPORTED = [module for module in map(exported_module, NOTEBOOKS) if module]
CORE = [module for module in map(exported_module, NUMBERED) if module]
TOP = {"cbnb", "cbnb.__main__", *(f"cbnb.{name}" for name in SETTINGS["roof"].split())}  # these may import everything


def room(module: str) -> str:
    """The room of a module: `cbnb.lr.rules` is in lr, `cbnb.learner` in the core."""
    parts = module.split(".")
    return parts[1] if len(parts) > 2 else "core"


# --- layers ---


def all_modules() -> dict[str, Path]:
    """Every module of the package, `_modidx` (an index that nbdev keeps, never imported) excepted."""
    found = {}
    for path in LIB.rglob("*.py"):
        parts = ["cbnb", *path.relative_to(LIB).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    found.pop("cbnb._modidx", None)
    return found


MODULES = all_modules()


def imports(module: str) -> list[tuple[int, str, bool]]:
    """Line, imported module of the package, and whether it is a star-import; those inside functions too, and not those for type checkers."""
    path, found = MODULES[module], []
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    blocks = [node for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    for_types = {node for block in blocks for node in ast.walk(block)}
    for node in ast.walk(tree):
        if node in for_types:
            continue
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name, False) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:  # `from cbnb import learner` imports a module
                inner = f"{source}.{alias.name}"
                found.append((node.lineno, inner if inner in MODULES else source, alias.name == "*"))
    return [(line, name, star) for line, name, star in found if name.split(".")[0] == "cbnb"]


def test_every_module_has_a_room():
    without = [name for name, path in MODULES.items() if path.name != "__init__.py" and name not in TOP and room(name) not in ROOMS]
    assert not without, f"settings.ini knows no room for {without}"
    without = [name for name, path in MODULES.items() if path.name not in ("__init__.py", "__main__.py") and name not in EXPORTED]
    assert not without, f"no notebook exports {without}"
    assert {module for module in EXPORTED if room(module) == "core"} - TOP == set(CORE), "a notebook of the core has a number"


@pytest.mark.parametrize("notebook", [path for path in NOTEBOOKS if exported_module(path)], ids=name_of)
def test_a_module_is_named_like_its_notebook(notebook: Path):
    *rooms, name = notebook.relative_to(NBS).with_suffix("").parts
    assert exported_module(notebook) == ".".join(["cbnb", *rooms, re.sub(r"^\d+_", "", name)])


def test_subpackages_import_nothing():
    inits = [name for name, path in MODULES.items() if path.name == "__init__.py" and name not in TOP]
    assert not [name for name in inits if imports(name)]


@pytest.mark.parametrize("module", [name for name in EXPORTED if name not in TOP])
def test_imports_go_down(module: str):
    here = room(module)
    rooms_below = set(ROOMS[: ROOMS.index(here)])
    for line, imported, star in imports(module):
        where = f"{name_of(MODULES[module])}:{line}"
        beside = room(imported) == here  # the numbers of the core are the order of reading
        assert imported not in TOP and (beside or room(imported) in rooms_below), (
            f"{where} imports {imported}, which is not in a layer below"
        )
        assert not star, f"{where} imports * from {imported}: name what is needed"


def test_no_room_has_a_cycle():
    graph = {module: {imported for _, imported, _ in imports(module)} for module in EXPORTED if module not in TOP}
    assert set(TopologicalSorter(graph).static_order()) >= set(graph)  # raises CycleError, with the cycle


# --- imports ---

OF_LOGGERS = ["tensorboard", "wandb", "mlflow"]
OF_DISTRIBUTED = ["accelerate", "cloudpickle", "huggingface_hub", "safetensors"]  # of the extra `distributed`
NEEDED_LATER = ["statistics", "decimal", "fractions"]  # milliseconds, of checks and rules
HEAVY = [
    *NEEDED_LATER,
    "matplotlib",
    "ipywidgets",
    "IPython",
    "pandas",
    "tqdm",
    "sklearn",
    "scipy",
    "nbdev",
    "fastcore",
    *OF_DISTRIBUTED,
    *OF_LOGGERS,
]


def modules_after(statement: str) -> set[str]:
    """The top-level modules that a fresh process holds after `statement`."""
    code = f"{statement}\nimport sys, json; print(json.dumps(sorted({{name.split('.')[0] for name in sys.modules}})))"
    return set(json.loads(subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True)))


@pytest.fixture(scope="module")
def loaded_by_torch() -> set[str]:
    return modules_after("import torch")


@pytest.mark.parametrize("statement", ["import cbnb"] + ["from cbnb.all import *"] * ("cbnb.all" in MODULES))
def test_import_is_light(statement: str, loaded_by_torch: set[str]):
    more = modules_after(statement) - loaded_by_torch
    assert not more & set(HEAVY), f"`{statement}` brings {sorted(more & set(HEAVY))}"


OF_CHECKS = [
    "evidence",
    "finding_figures",
    "texts",
    "data_faults",
    "model_faults",
    "place_faults",
    "error_faults",
    "callback_faults",
    "plan_faults",
    "small_trainings",
    "fit_faults",
]


def test_what_only_a_check_or_workers_need_is_imported_by_them():
    modules = [*(f"cbnb.insight.{name}" for name in OF_CHECKS), "cbnb.basics.workers"]
    assert set(modules) <= MODULES.keys()
    code = f"import cbnb, gc, sys; print([name for name in {modules} if name in sys.modules], gc.isenabled())"
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True) == "[] True\n"


def test_an_import_without_collections_of_garbage_leaves_them_off():
    """While `cbnb` is imported there are none, as the first would look at all objects of torch; in between, this is as it was."""
    code = "import gc; gc.disable(); import cbnb; print(gc.isenabled())"
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True) == "False\n"


FIT_ALONE = """
import importlib
for name in {modules}: importlib.import_module(name)
from cbnb.toy import line_learner
learn = line_learner()
learn.fit(1)
learn.validate()
"""


def test_one_process_needs_nothing_of_the_extra_for_several(loaded_by_torch: set[str]):
    """All modules are imported, and a learner fits: not even then."""
    more = modules_after(FIT_ALONE.format(modules=EXPORTED)) - loaded_by_torch
    assert not more & {*OF_DISTRIBUTED, *OF_LOGGERS}


# --- the names of `cbnb.all` ---


def test_the_names_are_those_that_were_reviewed():
    import cbnb.all

    lines = (ROOT / "tests" / "names.txt").read_text(encoding="utf-8").splitlines()
    reviewed = [line for line in lines if line and line[0] != "#"]
    assert sorted(cbnb.all.__all__) == sorted(reviewed) and len(reviewed) == len(set(reviewed)) <= 85


def test_the_names_hide_nothing_that_a_notebook_imports():
    import builtins

    import numpy
    import torch
    import torchmetrics

    import cbnb.all

    kept = {"Metric", "minimum"}  # fastai's users type them
    hidden = {name for name in cbnb.all.__all__ for module in (builtins, numpy, torch, torchmetrics) if hasattr(module, name)}
    assert hidden == kept


def test_the_names_of_fastai_stand_beside_them():
    import cbnb.all
    import cbnb.names.fastai as names

    assert not set(names.__all__) & set(cbnb.all.__all__)
    for name in names.__all__:
        found = getattr(names, name)
        assert found.__name__ in (name, name.removesuffix("Callback")) and found.__module__.startswith("cbnb.")


# --- the wheel ---


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as people get it, built from what a checkout holds."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in ("settings.ini", "setup.py", "pyproject.toml", "LICENSE", "README.md"):
        if (ROOT / name).exists():
            (source / name).write_bytes((ROOT / name).read_bytes())
    for path in (path for path in LIB.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
        (source / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
        (source / path.relative_to(ROOT)).write_bytes(path.read_bytes())
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(source))
    return next(folder.glob("*.whl"))


def pip(*arguments: str, python: Path | str = sys.executable) -> None:
    command = [python, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_wheel_holds_the_package_only(wheel: Path):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"cbnb"}
    assert "cbnb/py.typed" in names
    assert "cbnb/_modidx.py" not in names  # nbdev's index of the notebooks
    assert {f"{module.replace('.', '/')}.py" for module in EXPORTED} <= set(names)


def test_the_sdist_holds_what_a_wheel_is_built_from(tmp_path: Path):
    for name in ("settings.ini", "setup.py", "pyproject.toml", "MANIFEST.in", "LICENSE", "README.md", "CHANGELOG.md", "constraints.txt"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    (tmp_path / "cbnb").mkdir()
    (tmp_path / "cbnb" / "__init__.py").touch()
    done = subprocess.run([sys.executable, "setup.py", "-q", "sdist", "--formats=zip"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(next((tmp_path / "dist").glob("*.zip"))) as sdist:
        sdist.extractall(tmp_path)
    source = next(path for path in tmp_path.glob("cbnb-*") if path.is_dir())
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), str(source))
    assert len(list(tmp_path.glob("*.whl"))) == 1


def metadata_of(wheel: Path) -> Message:
    package = zipfile.ZipFile(wheel)
    return message_from_bytes(package.read(next(name for name in package.namelist() if name.endswith(".dist-info/METADATA"))))


def test_the_wheel_says_what_nbdev_reads(wheel: Path):
    metadata = metadata_of(wheel)
    assert (metadata["Name"], metadata["Version"]) == (SETTINGS["lib_name"], SETTINGS["version"])
    assert (metadata["Requires-Python"], metadata["Summary"]) == (f">={SETTINGS['min_python']}", SETTINGS["description"])
    assert metadata["Author-email"] == f"{SETTINGS['author']} <{SETTINGS['author_email']}>"
    assert metadata["Keywords"].split(",") == SETTINGS["keywords"].split()
    needed = [Requirement(text) for text in metadata.get_all("Requires-Dist")]
    assert {need.name for need in needed if not need.marker} == {"torch", "matplotlib", "ipywidgets", "tqdm"}
    import cbnb

    assert cbnb.__version__ == SETTINGS["version"]


def test_links_of_the_long_description_lead_out_of_the_wheel(wheel: Path):
    text = metadata_of(wheel).get_payload()
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    assert len(links) > 30 and all(re.match(r"https?://|#", link) for link in links)
    local = re.findall(r"\]\((?!https?://|#)([^)\s]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    address = SETTINGS["git_url"]
    assert {link.removeprefix(f"{address}/blob/main/").removeprefix(f"{address}/raw/main/") for link in links if address in link} == set(
        local
    )
    assert f"]({address}/raw/main/nbs/images/dashboard.gif)" in text  # an image as its file
    assert f'srcset="{address}/raw/main/nbs/images/dashboard-dark.gif"' in text
    assert all((ROOT / link.split("#")[0]).exists() for link in local)


TRAIN_ONCE = """
import importlib.util
import torch
from torch import nn
for name in ("nbdev", "fastcore", "IPython", "matplotlib"):
    assert importlib.util.find_spec(name) is None, f"{name} can be imported here"

import cbnb
from cbnb.data import DataLoaders
from cbnb.learner import Learner

torch.manual_seed(0)
x = torch.randn(256, 4)
y = x @ torch.tensor([[1.0], [-2.0], [0.5], [3.0]])
batches = list(zip(x.split(32), y.split(32)))
model = nn.Linear(4, 1)
learn = Learner(DataLoaders(batches, batches), model, loss_func=nn.MSELoss(), lr=0.1)
before = nn.functional.mse_loss(model(x), y).item()
learn.fit(1)
after = nn.functional.mse_loss(model(x), y).item()
assert after < before, (before, after)
print("where", cbnb.__file__)
print("trained", before, after)
"""


def closure(*names: str) -> set[str]:
    """The installed distributions that `names` need, themselves included."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        try:
            needs = distribution(name).requires or []
        except PackageNotFoundError:
            continue
        if name not in found:
            found.add(name)
            needed = map(Requirement, needs)
            waiting += [need.name for need in needed if not need.marker or need.marker.evaluate({"extra": ""})]
    return found


def link_packages(names: set[str], folder: Path) -> None:
    """Make the installed distributions `names`, and no others, importable from `folder`."""
    for name in names:
        for file in distribution(name).files or []:
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (folder / top).exists():
                (folder / top).symlink_to(distribution(name).locate_file(top))


def test_wheel_trains_without_nbdev(wheel: Path, tmp_path: Path):
    packages = tmp_path / "packages"
    packages.mkdir()
    link_packages(closure("torch", "numpy", "tqdm"), packages)
    venv.create(tmp_path / "env", with_pip=False, symlinks=os.name == "posix")
    python = tmp_path / "env" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    site = Path(subprocess.check_output([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True).strip())
    pip("install", "--no-deps", "--target", str(site), str(wheel))
    (site / "torch.pth").write_text(f"{packages}\n")
    alone = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run([python, "-c", TRAIN_ONCE], cwd=tmp_path, env=alone, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert str(site) in done.stdout, "it was not the wheel that trained"


# --- the notebooks ---


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=name_of)
def test_notebook_begins_with_title_and_subtitle(notebook: Path):
    first = cells(notebook)[0]
    lines = [line for line in first["source"].splitlines() if line.strip()]
    assert first["cell_type"] == "markdown" and len(lines) >= 2
    assert lines[0].startswith("# ") and lines[1].startswith("> ")


LINK = re.compile(r"\]\(((?!\w+:)[^)#\s]+\.ipynb)")


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=name_of)
def test_links_lead_to_notebooks(notebook: Path):
    links = {link for cell in cells(notebook) if cell["cell_type"] == "markdown" for link in LINK.findall(cell["source"])}
    assert not [link for link in links if not (notebook.parent / link).exists()]


def linked(page: Path) -> set[Path]:
    return {(page.parent / link).resolve() for cell in cells(page) for link in LINK.findall(cell["source"])}


def test_the_page_of_all_pages_links_to_them_and_the_first_page_to_it():
    index, contents = NBS / SETTINGS["readme_nb"], NBS / "guides" / "contents.ipynb"
    assert contents in linked(index)
    assert set(NOTEBOOKS) - {index, contents} == linked(contents)


def test_the_page_of_all_pages_describes_each_as_the_page_itself():
    contents = NBS / "guides" / "contents.ipynb"
    rows = [row for cell in cells(contents) for row in re.findall(r"^\| \[.*\]\((\S+)\) \| (.*) \|$", cell["source"], re.M)]
    assert len(rows) == len(linked(contents))
    subtitles = {page: re.findall(r"^> (.*)$", cells(contents.parent / page)[0]["source"], re.M)[0] for page, _ in rows}
    assert dict(rows) == subtitles


def public(module: str) -> list[tuple[str, object]]:
    """Names and objects: the public functions and classes of a module, and the functions it adds to classes with `@patch`."""
    loaded = importlib.import_module(module)
    found = [(node.name, node) for node in ast.parse(inspect.getsource(loaded)).body if hasattr(node, "name")]
    return [(name, node) for name, node in found if not name.startswith("_")]


@pytest.mark.parametrize("module", EXPORTED)
def test_public_definitions_have_docstrings(module: str):
    without = [name for name, node in public(module) if not ast.get_docstring(node)]
    assert not without, f"{module} does not say what these are: {', '.join(without)}"


MACHINE_PATH = re.compile(r"/(?:work|root|home|Users|tmp)/[\w.]")
WRITTEN = [
    *NOTEBOOKS,
    *(path for name in ("README.md", "Makefile", "settings.ini", "setup.py", "pyproject.toml") if (path := ROOT / name).exists()),
    *(
        path
        for folder in ("cbnb", "tools", "tests", "bench", ".ci")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.is_file() and path.suffix != ".pyc"
    ),
]


@pytest.mark.parametrize("path", WRITTEN, ids=name_of)
def test_no_path_of_one_machine(path: Path):
    text = path.read_text(encoding="utf-8", errors="ignore")
    if path.suffix == ".ipynb":  # pictures are not text
        text = "\n".join(readable(json.loads(text)))
    found = MACHINE_PATH.search(text)
    assert not found, f"{name_of(path)} mentions {text[found.start() : found.end() + 30]!r}"


def readable(notebook: dict) -> list[str]:
    """What a person can read in a notebook: the cells and their outputs in text form."""
    found = []
    for cell in notebook["cells"]:
        found.append("".join(cell["source"]))
        for output in cell.get("outputs", []):
            texts = [output.get("text", ""), output.get("traceback", "")]
            texts += [content for kind, content in output.get("data", {}).items() if kind.startswith("text/")]
            found += ["".join(text) for text in texts]
    return found
