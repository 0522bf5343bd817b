"""The reference by topic: each public name with what it takes, returns and raises, and an example from the notebooks."""

import importlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode

from docs_api import documented, entry, first_sentence, kind_of
from docs_nav import Page, title_and_about
from examples import Examples, Place
from notebooks import LIB, default_module, directives, is_hidden

# The topics: title, what it is about, and its names. A name is one of `cbnb.all`, or dotted from `cbnb`.
# A name of `cbnb.all` that is in none of them comes under "More callbacks".
TOPICS = {
    "learner": ("Learner", "Everything that a learner can do", "Learner FitInterrupted load_learner snapshot set_seed"),
    "data": ("Data", "Loaders, devices, batches", "DataLoaders Batches default_device to_device"),
    "callback": (
        "Writing callbacks",
        "The base class, the events, and the exceptions that end a batch, an epoch or a fit early",
        "Callback event TrainEvalCallback events.CancelException CancelStepException CancelBackwardException CancelBatchException CancelTrainException "
        "CancelValidException CancelEpochException CancelFitException",
    ),
    "metrics": (
        "Metrics",
        "Metrics of your own, of torchmetrics and of scikit-learn",
        "Metric AvgMetric AccumMetric ValueMetric SklearnMetric MAE accuracy error_rate metric_on",
    ),
    "history": ("History", "What a fit records, and how it is read, plotted and compared", "Recorder History history.Run compare"),
    "lab": (
        "Lab book",
        "Keep each fit in a folder, and read, compare and delete the records later",
        "LabBook lab.book.LabRun lab.sweep_runs.Sweep",
    ),
    "display": (
        "Display",
        "Progress, dashboard and live figures, and how to choose among them",
        "ProgressCallback ShowGraph Samples set_display display_as",
    ),
    "schedules": (
        "Schedules",
        "Learning rates and other hyper-parameters that change during a fit",
        "OneCycle ParamScheduler TorchScheduler schedule.Sched SchedLin SchedCos SchedExp SchedPoly SchedNo combine_scheds combined_cos ReduceLROnPlateau",
    ),
    "lr_find": (
        "Learning rate finder",
        "What `lr_find` returns, and its rules",
        "lr.finder.LRFind valley slide minimum steep",
    ),
    "gradients": (
        "Gradients and optimizers",
        "Clip, accumulate, and use several optimizers",
        "GradientClip GradientAccumulation MultiOptimizer",
    ),
    "stopping": (
        "Stopping early",
        "Fits and epochs that end before their time",
        "EarlyStopping StopAfter TerminateOnNaN ShortEpoch Tracker",
    ),
    "saving": ("Saving and resuming", "Checkpoints, the best weights, averaged weights", "SaveModel Checkpoint Resume EMA"),
    "speed": (
        "Speed and precision",
        "Mixed precision, compiled models, profiles, memory",
        "MixedPrecision Compile ChannelsLast display.profile.Profile",
    ),
    "regularization": ("Mixing and freezing", "Callbacks that change batches or layers", "MixUp CutMix BnFreeze"),
    "hooks": ("Hooks", "Read what is inside a model while it trains", "Hook Hooks HookCallback ActivationStats hook_output hook_outputs"),
    "predictions": (
        "Predictions and results",
        "Collect predictions, and see where a model is wrong",
        "callbacks.predictions.FetchPredsCallback MCDropoutCallback callbacks.interpret.Interpretation callbacks.interpret.Predictions",
    ),
    "steps": (
        "Training steps",
        "Steps with several losses, models or optimizers",
        "Step LossStep UpdateStep TrainStep EvalStep MultiLossStep",
    ),
    "distributed": ("Several processes", "Train on several GPUs or processes", "Distributed"),
    "loggers": (
        "Loggers",
        "Write rows, figures and checkpoints elsewhere",
        "CSVLogger callbacks.loggers.Logger callbacks.loggers.JSONLLogger callbacks.loggers.TensorBoardLogger "
        "callbacks.loggers.MLflowLogger callbacks.loggers.WandbLogger",
    ),
    "more": ("More callbacks", "What has no topic of its own", ""),
    "toys": (
        "Toys",
        "Small learners for examples, tests and bug reports",
        "toy.line_learner toy.wave_learner toy.digits_learner toy.close toy.raises toy.in_processes",
    ),
}
PUBLIC = {name.rpartition(".")[2] for _, _, names in TOPICS.values() for name in names.split()}  # their own methods are listed once
LEARNER = {
    "Train": "fit fit_one_cycle fine_tune fit_flat_cos fit_sgdr fit_distributed distributed rewind keep_restore_points stopped_where",
    "Find good settings": "check lr_find find_batch_size plot_schedule planned_schedule show_training_loop summary profile profiling",
    "Evaluate and predict": "validate get_preds predict show_results interpret loss_not_reduced validation_context",
    "Callbacks": "add_cb add_cbs remove_cb remove_cbs added_cbs removed_cbs cbs ordered_cbs no_bar no_logging no_mbar",
    "Layers, optimizer, precision": "freeze unfreeze freeze_to create_opt to_fp16 to_bf16 to_fp32 to_dls_device",
    "Save and load": "save load export state_dict load_state_dict",
}
ROWS = 4  # a topic with fewer names has no table on top


@dataclass
class Item:
    """A public name: how it is written, and where it is defined."""

    module: str
    name: str  # as in the reference, such as `Learner.fit`
    code: tuple[str, str]  # module and name of the definition, such as `cbnb.learner`, `Fits.fit`
    found: object

    @property
    def target(self) -> str:
        return f"{self.module}.{self.name}"


class Reference:
    """The public names, by topic and by definition."""

    def __init__(self, notebooks: dict[Path, NotebookNode]):
        self.notebooks = notebooks
        self.places: dict[tuple[str, str], Place] = {}  # of what has an entry on the page of its notebook
        self.examples = Examples(notebooks)
        for path, nb in notebooks.items():
            module = default_module(nb)
            for number, cell in enumerate(nb.cells):
                if module and {"export", "exports"} & set(directives(cell)) and not is_hidden(cell):
                    for name in documented(cell.source):
                        self.places.setdefault((module, name), Place(path, number))
        self.topics = {topic: [item for name in names for item in self._items(name)] for topic, names in _names().items()}
        self.topics = {topic: items for topic, items in self.topics.items() if items}
        self.by_code: dict[tuple[str, str], Item] = {}
        for items in self.topics.values():
            for item in items:
                self.by_code.setdefault(item.code, item)
        self.targets = {item.target for items in self.topics.values() for item in items}

    def page(self) -> Page:
        below = [Page(f"reference/{topic}", *TOPICS[topic][:2]) for topic in self.topics]
        return Page("reference/index", "Reference", "Every public name: what it takes, returns and raises, and an example", below)

    def files(self, link: Callable[[str, str], str]) -> Iterator[tuple[str, str]]:
        """The name and the text of each page; `link` turns backticked names into links, given a module."""
        for topic, items in self.topics.items():
            title, about, _ = TOPICS[topic]
            tops = [item for item in items if "." not in item.name]
            lines = [f"# {title}", "", f"> {about}", ""]
            if len(tops) >= ROWS:
                lines += [*_table(tops, link), ""]
            for top in tops:
                own = [item for item in items if item.module == top.module and item.name.startswith(f"{top.name}.")]
                groups = _groups(top, own)
                lines += [f"## {top.name}", ""]
                for group, members in groups.items():
                    lines += [f"### {group}", ""] * bool(group)
                    lines += [*_table(members, link, short=True), ""]
                lines += ["### In detail", ""] * (len(groups) > 1)
                lines += [self._entry(item, link) for item in (top, *(item for members in groups.values() for item in members))]
            yield f"reference/{topic}", "\n".join(lines)

    def _entry(self, item: Item, link: Callable[[str, str], str]) -> str:
        place, example = self.places.get(item.code), self.example(item)
        tail = ["", "**Example**", "", "```python", example, "```"] if example else []
        if place:
            title, _ = title_and_about(self.notebooks[place.path])
            tail += ["", f"{{ref}}`Code and how it works: {title} <{place.label(*item.code)}>`"]
        return entry(item.module, item.name, lambda text: link(text, item.module), tail=tail)

    def example(self, item: Item) -> str:
        """Lines that use the name: of the first cells after its definition, of any cell of its notebook, or of another page."""
        return next(self.examples.of(item.code, item.name), "")

    def _items(self, name: str) -> Iterator[Item]:
        module, found = _resolve(name)
        plain = name.rpartition(".")[2]
        qualname = getattr(found, "__qualname__", plain)
        yield Item(module, plain, (module, qualname), found)
        if inspect.isclass(found):
            for member in sorted(_members(found)):
                stored = inspect.getattr_static(found, member)
                function = _function(stored)
                code = function.__module__, function.__qualname__
                if code[1].rpartition(".")[0] in (plain, found.__name__) or code[1].rpartition(".")[0] not in PUBLIC:
                    yield Item(module, f"{plain}.{member}", code, stored if isinstance(stored, property) else function)


def _names() -> dict[str, list[str]]:
    """The names of each topic; those that the package does not have are left out."""
    package = importlib.import_module(f"{LIB.name}.all")
    topics = {topic: [name for name in names.split() if _resolve(name)] for topic, (_, _, names) in TOPICS.items()}
    named = {name for names in topics.values() for name in names}
    for name in package.__all__:
        if name not in named:
            module = getattr(getattr(package, name), "__module__", "")
            topics["loggers" if "logger" in module else "more"].append(name)
    return topics


def _resolve(name: str) -> tuple[str, object] | None:
    """The module that defines a name, and what it is."""
    module, _, last = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(f"{LIB.name}.{module or 'all'}"), last)
    except (ImportError, AttributeError):
        return None
    home = getattr(found, "__module__", None) or type(found).__module__
    if getattr(importlib.import_module(home), last, None) is not found:
        home = f"{LIB.name}.{module or 'all'}"
    return home, found


def _members(cls: type) -> Iterator[str]:
    """What is documented of a class: its public methods and properties, but for events, and for those that a base has in the reference."""
    from cbnb.events import EVENTS

    common = {name for base in cls.__mro__[1:] if _has_entry(base) for name in dir(base)}
    for name in dir(cls):
        if name.startswith("_") or name in common or name in EVENTS:
            continue
        function = _function(inspect.getattr_static(cls, name))
        if function and "." in function.__qualname__ and (function.__module__ or "").startswith(LIB.name) and inspect.getdoc(function):
            yield name


def _has_entry(base: type) -> bool:
    """True for a class of the reference, and for those of other packages, which are documented there."""
    return base is not object and (base.__name__ in PUBLIC or not base.__module__.startswith(LIB.name))


def _function(stored: object) -> Callable | None:
    """The function behind a method or property."""
    stored = (stored.fset or stored.fget) if isinstance(stored, property) else getattr(stored, "__func__", stored)
    return stored if inspect.isfunction(stored) else None


def _groups(top: Item, members: list[Item]) -> dict[str, list[Item]]:
    if not members:
        return {}
    if top.name != "Learner":
        return {"": members}
    by_name = {item.name.removeprefix("Learner."): item for item in members}
    groups = {title: [by_name.pop(name) for name in names.split() if name in by_name] for title, names in LEARNER.items()}
    return {**groups, "State and others": list(by_name.values())}


def _table(items: list[Item], link: Callable[[str, str], str], short: bool = False) -> list[str]:
    lines = ["| Name | What it does |", "| :-- | :-- |"]
    for item in items:
        call = "()" if kind_of(item.module, item.name, item.found) in ("method", "classmethod", "staticmethod", "function") else ""
        text = item.name.rpartition(".")[2] if short else item.name
        about = link(first_sentence(item.found), item.module).replace("|", r"\|").replace("\n", " ")
        lines.append(f"| {{py:obj}}`{text}{call} <{item.target}>` | {about} |")
    return lines
