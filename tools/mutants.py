"""Would a test notice? Change one thing in a module, run the tests concerned, and count how many of the changes are noticed.

    python tools/mutants.py undo                        40 mutants of cbnb/undo.py
    python tools/mutants.py callbacks/mixup lr/rules --n 10 --seed 1
    python tools/mutants.py dialects/fastai_v1_loop --list     only show what would be changed

A mutant is the module with one change: a comparison, operator or constant is another, a condition is negated, a statement,
a `with` or the registration of an undo is dropped. It is killed if a test, or the module's own notebook, fails or hangs.
The tests concerned are those of the files in `TESTS` that call the changed function, or that have a process of their own,
such as a kernel, where it may be called unseen. All happens in a copy of the project.

Mutants that change nothing a user could see are listed, with the reason, in `mutants.txt`, and do not count.
"""

import argparse
import ast
import difflib
import json
import math
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import pytest

from notebooks import LIB, NBS, ROOT, directives, is_skipped, read

EQUIVALENT = Path(__file__).with_suffix(".txt")
SURVIVED, HANGS = "", "takes too long"
ELSEWHERE = "in another process"

# The test files for a module, besides test_defaults.py; for all others it is test_<module>.py.
TESTS = {
    "callback": "callbacks events errors",
    "callbacks/gradients": "control",
    "callbacks/stopping": "control",
    "callbacks/schedulers": "control",
    "callbacks/predictions": "predictions control",
    "callbacks/saving": "saving interrupts",
    "callbacks/mixup": "mixup hooks",
    "learner": "learner callbacks events errors undo guards steps data interrupts",
    "lr/finder": "lr_finder lr_trials interrupts",
    "lr/rules": "lr_rules lr_finder",
    "lr/trials": "lr_trials",
    "lr/picker": "lr_picker",
    "optim": "optim steps schedule errors",
    "history": "recorder plots",
    "recorder": "recorder figures plots",
    "display/show_graph": "hooks",
    "snapshot": "snapshot undo",
    "undo": "undo interrupts guards",
    "basics/arguments": "errors optim learner",
    "basics/text": "chart recorder learner callbacks",
    "basics/notices": "front_end errors callbacks",
    "basics/patch": "callbacks",
    "basics/nested": "data metrics",
    "basics/loaders": "data",
    "basics/random_state": "data snapshot",
    "basics/processes": "metrics",
    "basics/outputs": "metrics",
    "basics/layout": "metrics",
    "basics/all_pairs": "errors",
    "basics/sklearn_functions": "metrics",
    "dialects/detect": "detect fastai_v1",
} | {f"dialects/fastai_v1{name}": "fastai_v1" for name in ("", "_loop", "_schedules", "_slots")}

_SWAPS = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Div, ast.Mod: ast.FloorDiv},
    **{ast.Pow: ast.Mult},
}
_DROPPED = (ast.Expr, ast.AugAssign, ast.Delete, ast.Raise, ast.Return, ast.Break, ast.Continue)
_UNDO = re.compile(r"(undo|each|stack)\.(callback|push|set|enter_context)$")


@dataclass(frozen=True)
class Mutant:
    """A module with one change."""

    kind: str
    line: int
    function: str  # its qualified name; empty outside of functions
    source: str  # all of the module
    diff: tuple[str, str]  # the lines before and after

    def __str__(self) -> str:
        before, after = self.diff
        return f"line {self.line}, {self.function or 'module'}: {self.kind}\n      - {before}\n      + {after}"


class _Finder(ast.NodeVisitor):
    """Finds the possible changes of a module: kind, function, node (or range of bytes) and the text that replaces it."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str, ast.AST, str]] = []
        self.scope: list[ast.AST] = []

    def add(self, kind: str, node: ast.AST, text: str | ast.AST) -> None:
        names = [scope.name for scope in self.scope]
        function = ".".join(names) if any(not isinstance(scope, ast.ClassDef) for scope in self.scope) else ""
        self.found.append((kind, function, node, text if isinstance(text, str) else ast.unparse(text)))

    def add_changed(self, kind: str, node: ast.AST, **fields: object) -> None:
        self.add(kind, node, type(node)(**{**dict(ast.iter_fields(node)), **fields}))

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.scope.append(node)
        for part in node.body:
            self.visit(part)
        self.scope.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
            self.visit(default)
        self.scope.append(node)
        for decorator in node.decorator_list:
            if "no_grad" in ast.unparse(decorator):
                self.add("dropped with", decorator, "(lambda f: f)")
        for part in node.body:
            self.visit(part)
        self.scope.pop()

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value:
            self.visit(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Words are left as they are: before Python 3.12, their parts do not even know where they stand."""

    def generic_visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.stmt) and any(not isinstance(scope, ast.ClassDef) for scope in self.scope):
            self._statement(node)
        super().generic_visit(node)

    def _statement(self, node: ast.stmt) -> None:
        call = node.value if isinstance(node, ast.Expr) else None
        if isinstance(call, ast.Constant | ast.Yield) or ast.unparse(node) == "return None":
            return
        if isinstance(call, ast.Call) and (undo := _UNDO.search(ast.unparse(call.func))):
            args = ", ".join(map(ast.unparse, call.args))
            done = {"set": f"setattr({args})", "enter_context": f"{args}.__enter__()"}  # the change stays
            self.add("dropped undo", node, done.get(undo[2], "pass"))
        elif isinstance(node, _DROPPED):
            self.add("dropped statement", node, "pass")
        elif isinstance(node, ast.Assign) and not any(isinstance(target, ast.Name | ast.Tuple) for target in node.targets):
            self.add("dropped statement", node, "pass")

    def visit_With(self, node: ast.With) -> None:
        for item in node.items:
            if item.optional_vars is None:
                others = ", ".join(ast.unparse(other) for other in node.items if other is not item)
                last = node.items[-1].optional_vars or node.items[-1].context_expr
                place = dict(lineno=node.lineno, col_offset=node.col_offset, end_lineno=last.end_lineno, end_col_offset=last.end_col_offset)
                self.add("dropped with", ast.Pass(**place), f"with {others}" if others else "if True")
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1:
            self.add_changed("operator", node, ops=[_SWAPS[type(node.ops[0])]()])
        self.generic_visit(node)

    def _operator(self, node: ast.BinOp | ast.BoolOp | ast.AugAssign) -> None:
        if type(node.op) in _SWAPS:
            self.add_changed("operator", node, op=_SWAPS[type(node.op)]())
        self.generic_visit(node)

    visit_BinOp = visit_BoolOp = visit_AugAssign = _operator

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not | ast.USub):
            self.add("operator", node, node.operand)
        self.generic_visit(node)

    def _condition(self, node: ast.If | ast.While | ast.IfExp) -> None:
        if not isinstance(node.test, ast.Compare | ast.UnaryOp):  # there a changed operator says the same
            self.add("condition", node.test, f"not ({ast.unparse(node.test)})")
        self.generic_visit(node)

    visit_If = visit_While = visit_IfExp = _condition

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self.add("constant", node, str(not node.value))
        elif isinstance(node.value, int | float):
            self.add("constant", node, repr(node.value * 2 if abs(node.value) > 9 else node.value + 1))


def _replaced(source: bytes, node: ast.AST, text: str) -> str:
    """`source` with `text` in place of `node`."""
    starts = [0, *(match.end() for match in re.finditer(rb"\n", source))]
    start = starts[node.lineno - 1] + node.col_offset
    end = starts[node.end_lineno - 1] + node.end_col_offset
    return (source[:start] + text.encode() + source[end:]).decode()


def _diff(before: str, after: str) -> tuple[str, str]:
    """The lines that differ, each side in one line."""
    lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm=""))[3:]
    old, new = (" ".join(line[1:].strip() for line in lines if line[:1] == sign) for sign in "-+")
    return " ".join(old.split()), " ".join(new.split())


def mutants_of(source: str) -> list[Mutant]:
    """All mutants of a module."""
    finder, found, tree, n_lines = _Finder(), {}, ast.parse(source), len(source.splitlines())
    ends = [0, *(statement.end_lineno for statement in tree.body)]  # of the statements, in lines
    finder.visit(tree)
    for kind, function, node, text in finder.found:
        changed = _replaced(source.encode(), node, text)
        before = max(end for end in ends if end < node.lineno)
        after = n_lines - min(end for end in ends if end >= node.lineno)
        lines = changed.splitlines()
        compile("\n".join(lines[before : len(lines) - after]), "mutant", "exec")  # the statement alone: it is quicker
        found[changed] = Mutant(kind, node.lineno, function, changed, _diff(source, changed))
    return list(found.values())


def drawn(mutants: list[Mutant], n: int, seed: int | str) -> list[Mutant]:
    """`n` of them by chance, of each kind as many as there are or as of the others, in the order of the module."""
    rng, kinds = random.Random(f"{seed}"), defaultdict(list)
    for mutant in mutants:
        kinds[mutant.kind].append(mutant)
    for group in kinds.values():
        rng.shuffle(group)
    turns = sorted((turn, kind) for kind, group in kinds.items() for turn in range(len(group)))
    return sorted((kinds[kind][turn] for turn, kind in turns[:n]), key=lambda mutant: mutant.line)


def equivalents(text: str) -> dict[tuple[str, str, str], str]:
    """(module, before, after) -> why this mutant changes nothing."""
    found = {}
    for block in re.split(r"\n\s*\n", text.strip()):
        lines = [line.strip() for line in block.splitlines() if not line.startswith("#")]
        if lines:
            head, before, after = lines
            module, why = head.split(": ", 1)
            found[module, before.removeprefix("- "), after.removeprefix("+ ")] = why
    return found


class _Watch:
    """A pytest plugin: which tests call which functions of the module, or have a process of their own, and how long each takes."""

    def __init__(self, path: Path):
        self.path, self.calls, self.seconds, self.called, self.failed = str(path), {}, {}, set(), []
        self.starting, self.fixtures = set(), set()  # names of the fixtures that are being set up, and of those that started a process
        sys.addaudithook(self._audit)

    def _trace(self, frame, event, arg):
        if frame.f_code.co_filename == self.path:
            self.called.add(frame.f_code.co_qualname.replace(".<locals>", ""))

    def _audit(self, event, args):
        if event == "subprocess.Popen":
            self.called.add(ELSEWHERE)
            self.fixtures |= self.starting

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef, request):
        self.starting.add(fixturedef.argname)
        try:
            return (yield)
        finally:
            self.starting.discard(fixturedef.argname)

    def pytest_runtest_teardown(self, item):
        if self.fixtures & set(item.fixturenames):
            self.called.add(ELSEWHERE)

    def pytest_runtest_logstart(self, nodeid, location):
        self.called = set()
        sys.settrace(self._trace)
        self.start = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid, location):
        sys.settrace(None)
        self.calls[nodeid] = sorted(self.called)
        self.seconds[nodeid] = round(time.monotonic() - self.start, 3)

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.failed.append(report.nodeid)


class _Chosen:
    """A pytest plugin: runs the tests of a list, in its order, and remembers which one failed."""

    def __init__(self, tests: list[str]):
        self.rank, self.failed = {test: i for i, test in enumerate(tests)}, ""

    def pytest_collection_modifyitems(self, session, items):
        self.session = session
        items[:] = sorted((item for item in items if item.nodeid in self.rank), key=lambda item: self.rank[item.nodeid])

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.failed = self.failed or report.nodeid
            self.session.shouldfail = "one is enough"


def run_notebook(path: Path, module: str, end: int | None) -> int:
    """Run the cells of a notebook, `end` excepted and what follows, with the module in place of its exported cells; the cell that fails, or 0."""
    from importlib import import_module

    from IPython.core.interactiveshell import InteractiveShell

    shell, exported = InteractiveShell.instance(), vars(import_module(module))
    sys.path.insert(0, os.getcwd())
    for number, cell in enumerate(read(path).cells[: end and end - 1], 1):
        if cell.cell_type != "code" or is_skipped(cell):
            continue
        if any(directive.split()[0] in ("export", "exporti") for directive in directives(cell)):
            defined = {name.id for name in ast.walk(ast.parse(cell.source)) if isinstance(name, ast.Name)}
            defined |= {node.name for node in ast.parse(cell.source).body if hasattr(node, "name")}
            defined |= {
                alias.asname or alias.name
                for node in ast.walk(ast.parse(cell.source))
                for alias in getattr(node, "names", [])
                if isinstance(alias, ast.alias)
            }
            shell.user_ns.update({name: exported[name] for name in defined & exported.keys()})
        elif not shell.run_cell(cell.source).success:
            return number
    return 0


class Project:
    """A copy of the project, in which one module is changed and tested."""

    def __init__(self, folder: Path, module: str, limit: float = 60):
        self.folder, self.module, self.limit, self.last_cell = folder, module, limit, None
        for name in (LIB.name, NBS.name, "tests", "tools"):
            shutil.copytree(ROOT / name, folder / name, dirs_exist_ok=True)
        for path in ROOT.glob("*.*"):
            if path.is_file() and path.suffix != ".pyc":
                shutil.copy(path, folder)
        self.path = folder / LIB.name / f"{module}.py"
        self.source = self.path.read_text(encoding="utf-8")
        names = TESTS.get(module, module.split("/")[-1].split("_")[0] if "dialects/mindspore" in module else module.split("/")[-1]).split()
        self.files = [f"tests/test_{name}.py" for name in (*names, "defaults")]
        notebook = re.search(r"File to edit: .*?([^/]+\.ipynb)", self.source)
        self.notebook = folder / NBS.name / notebook[1]

    def write(self, source: str) -> None:
        """Make this the module."""
        self.path.write_text(source, encoding="utf-8")
        for cached in (self.path.parent / "__pycache__").glob(f"{self.path.stem}.*"):
            cached.unlink()

    def in_child(self, job: Callable[[], object], limit: float) -> object:
        """What `job` returns, in a process of its own that sees this copy; `HANGS` if it takes longer than `limit` seconds."""
        answer, log = self.folder / "answer.json", self.folder / "log.txt"
        answer.unlink(missing_ok=True)
        pid = os.fork()
        if not pid:
            try:
                os.setsid()
                output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                for stream in (1, 2):
                    os.dup2(output, stream)
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.chdir(self.folder)
                os.environ["PYTHONPATH"] = str(self.folder)
                here = (ROOT, ROOT / "tools")
                sys.path[:] = [str(self.folder), *(path for path in sys.path if Path(path or ".").resolve() not in here)]
                sys.dont_write_bytecode = True
                for name in [name for name in sys.modules if name.split(".")[0] in (LIB.name, "conftest", "helpers", "notebooks")]:
                    del sys.modules[name]
                answer.write_text(json.dumps(job()))
                sys.stdout.flush()
            except BaseException:
                import traceback

                traceback.print_exc()
                sys.stderr.flush()
            finally:
                os._exit(0)
        end = time.monotonic() + limit
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > end:
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return HANGS
            time.sleep(0.02)
        try:
            os.killpg(pid, signal.SIGKILL)  # what it started and left behind
        except ProcessLookupError:
            pass
        return json.loads(answer.read_text()) if answer.exists() else "the process died"

    def pytest(self, plugin: object, files: list[str]) -> int:
        """Run tests."""
        return int(pytest.main(["-q", *files], plugins=[plugin]))

    def watch(self) -> None:
        """Run all tests as they are, to learn which of them call what."""

        def job() -> object:
            sys.dont_write_bytecode = False  # the tests are compiled once for all
            watch = _Watch(self.path)
            return self.pytest(watch, self.files), watch.calls, watch.seconds, watch.failed

        answer = self.in_child(job, 3600)
        if isinstance(answer, str) or answer[0] > 1:
            self.give_up("cannot be run")
        _, self.calls, self.seconds, failed = answer
        for test in failed:
            print(f"  without {test}, which fails as it is")
            self.calls.pop(test, None)

    def check(self) -> None:
        """Would all pass that is going to judge the mutants? A notebook that needs a real kernel is run up to there."""
        start = time.monotonic()
        failed = self.failed_notebook(600)
        self.notebook_seconds = time.monotonic() - start
        if failed:
            print(f"  of {self.notebook.name} only what is before {failed}")
            number = failed.split()[-1]
            self.last_cell = int(number) if number.isdigit() else 1
        if failed := self.failed_test(""):
            self.give_up(f"depend on their order: {failed}")

    def give_up(self, why: str) -> None:
        """Stop, and show the end of what the last child printed."""
        sys.exit(f"the tests of {self.module} {why}\n" + (self.folder / "log.txt").read_text(errors="replace")[-3000:])

    def failed_notebook(self, limit: float) -> str:
        """The cell of the module's own notebook that fails, if one does."""
        dotted = f"{LIB.name}.{self.module.replace('/', '.')}"
        failed = self.in_child(lambda: run_notebook(self.notebook, dotted, self.last_cell), limit)
        return f"{self.notebook.name}, cell {failed}" if failed else SURVIVED

    def failed_test(self, function: str) -> str:
        """The test that fails, among those that may call `function` (all of them if it is empty): the quick ones first,
        those with a process of their own last and in their order, so that each process is started once."""

        def concerned(test: str) -> bool:
            return not function or any(name in (function, ELSEWHERE) or name.startswith(f"{function}.") for name in self.calls[test])

        tests = list(filter(concerned, self.calls)) or list(self.calls)
        tests.sort(key=lambda test: math.inf if ELSEWHERE in self.calls[test] else self.seconds[test])
        tests = [test for test, spent in zip(tests, accumulate(map(self.seconds.get, tests))) if spent <= self.limit] or tests[:1]
        files = [file for file in self.files if any(test.startswith(file) for test in tests)]

        def job() -> str:
            chosen = _Chosen(tests)
            code = self.pytest(chosen, files)
            return SURVIVED if not code else chosen.failed or f"pytest exits with {code}"

        return str(self.in_child(job, 30 + 5 * sum(map(self.seconds.get, tests))))

    def killer(self, mutant: Mutant) -> str:
        """What notices the mutant; empty if nothing does."""
        self.write(mutant.source)
        return self.failed_test(mutant.function) or self.failed_notebook(30 + 5 * self.notebook_seconds)


def warm_up() -> None:
    """Import, once for all children, what takes long; nothing of the package."""
    import warnings

    os.environ |= {"MPLBACKEND": "agg", "OMP_NUM_THREADS": "1", "JUPYTER_PLATFORM_DIRS": "1"}
    import IPython.core.interactiveshell
    import ipywidgets
    import matplotlib.pyplot
    import nbclient
    import torch

    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torchmetrics


def tested(module: str, mutants: list[Mutant], limit: float) -> tuple[int, int, list[Mutant]]:
    """How many mutants were killed, how many change nothing, and those that survived."""
    known, killed, same, survivors = equivalents(EQUIVALENT.read_text(encoding="utf-8")), 0, 0, []
    with tempfile.TemporaryDirectory(prefix="mutants") as folder:
        project = Project(Path(folder).resolve(), module, limit)
        project.watch()
        project.check()
        print(f"  {len(project.calls)} tests, {sum(project.seconds.values()):.0f} s", flush=True)
        for mutant in mutants:
            start = time.monotonic()
            if (module, *mutant.diff) in known:
                same += 1
                continue
            killer = project.killer(mutant)
            print(f"  {time.monotonic() - start:5.1f} s  {'killed by ' + killer if killer else 'SURVIVED'}: {mutant}", flush=True)
            if killer:
                killed += 1
            else:
                survivors.append(mutant)
    return killed, same, survivors


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="+", help="as in cbnb/: undo, dialects/fastai_v1_loop")
    parser.add_argument("--n", type=int, default=40, help="mutants of each module")
    parser.add_argument("--seed", type=int, default=0, help="which ones are drawn")
    parser.add_argument(
        "--seconds", type=float, default=60, help="greatest time of the tests of one mutant, without it; the quick ones go first"
    )
    parser.add_argument("--lines", type=int, nargs=2, metavar=("FIRST", "LAST"), help="all mutants of these lines instead")
    parser.add_argument("--list", action="store_true", help="run nothing")
    args = parser.parse_args()

    lines = []
    for module in args.modules:
        mutants = mutants_of((LIB / f"{module}.py").read_text(encoding="utf-8"))
        if args.lines:
            mutants = [mutant for mutant in mutants if args.lines[0] <= mutant.line <= args.lines[1]]
        else:
            mutants = drawn(mutants, args.n, f"{args.seed} {module}")
        print(f"{module}: {len(mutants)} mutants", flush=True)
        if args.list:
            print(*(f"  {mutant}" for mutant in mutants), sep="\n")
            continue
        warm_up()
        killed, same, survivors = tested(module, mutants, args.seconds)
        lines.append(
            f"{module:24} {killed:3} of {len(mutants) - same} killed, {killed / max(1, len(mutants) - same):4.0%}, {same} change nothing"
        )
        print(lines[-1], *(f"  SURVIVED {mutant}" for mutant in survivors), sep="\n", flush=True)
    print("", *lines, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
