"""The sections of the site, by purpose, and the pages that list what is in each."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from nbformat import NotebookNode

from notebooks import INDEX, NBS, SETTINGS, room

# of the how-to pages, in the order of their list; a page that is not named comes last
QUESTIONS = {
    "The loop": [
        "optimizer",
        "clip_gradients",
        "accumulate_gradients",
        "change_lr_while_training",
        "own_schedule",
        "freeze_layers",
        "two_optimizers",
    ],
    "Stop, keep, resume": ["validate_every_n_steps", "stop_early", "keep_the_best", "save_and_load", "resume_after_a_crash", "go_back"],
    "Data and models": [
        "own_dataset",
        "image_folder",
        "dataframe",
        "dict_batches",
        "several_inputs_outputs",
        "pretrained_weights",
        "class_weights",
        "label_smoothing",
        "own_loss",
        "predict_new_data",
        "export_onnx",
    ],
    "Metrics and logs": ["own_metric", "sklearn_torchmetrics", "watch_more", "log_elsewhere"],
    "Speed and memory": ["device", "mixed_precision", "compile", "several_gpus", "why_is_it_slow", "out_of_memory"],
    "When something is wrong": ["does_not_learn", "nan_losses", "errors", "no_widgets"],
    "Experiments": ["lab_book", "reproducible_runs", "cross_validation", "tune_with_optuna", "run_as_a_script"],
}
ROOMS = {  # a room of the library -> its title, and what is in it
    "core": ("The core", "The loop, its events, and what a learner is made of. Each page uses only the pages before it"),
    "display": ("Display", "Dashboard, tables, charts and figures"),
    "files": ("Files", "What a learner saves, and how it continues"),
    "lr": ("Learning rate", "How the learning rate finder sweeps, decides, and lets you pick"),
    "callbacks": ("Callbacks", "What you add to a learner, each with its code"),
    "distributed": ("Several processes", "Training on several processes and devices"),
    "lab": ("Lab book", "A record of all fits that outlives the kernel"),
    "basics": ("Basics", "Helpers of the other pages"),
    "dialects": ("Dialects", "Callbacks and learners of fastai and MindSpore, as cbnb runs them"),
    "names": ("Names", "Other names for the same classes"),
}
ORDER = list(ROOMS)
# How much a page counts in the search, by the beginning of its name; the first that fits.
RANKS = {
    "how_to/index": 1.0,
    "how_to/": 3.0,
    "tutorials/index": 1.0,
    "tutorials/": 2.2,
    "reference/index": 1.0,
    "reference/": 2.0,
    "guides/contents": 0.3,
    "guides/": 1.8,
    "moving/": 1.6,
    "dialects/": 0.3,
    "names/": 0.3,
    "basics/": 0.4,
    "how_it_works/": 0.5,
    "all": 0.5,
}
BY_PART = ("how_to/", "tutorials/", "guides/", "moving/")  # whose parts the search knows by their words
# More words that pages are searched by; how-to pages say theirs in a line "Also called: ..."
ALSO = {
    "index": ["getting started", "quick start", "how do I start", "first steps", "install", "introduction", "hello world", "first model"],
    "lr/finder": [
        "find learning rate",
        "which learning rate",
        "good learning rate",
        "choose the learning rate",
        "lr finder",
        "lr range test",
        "learning rate finder",
        "auto_lr_find",
    ],
    "reference/lr_find": [
        "lr_find",
        "find learning rate",
        "which learning rate",
        "good learning rate",
        "choose the learning rate",
        "suggested rate",
        "lr finder",
        "lr range test",
        "learning rate finder",
        "auto_lr_find",
    ],
    "reference/schedules": ["lr scheduler", "one cycle", "1cycle", "warmup"],
    "reference/saving": ["checkpoint", "save model", "load model"],
    "reference/loggers": ["tensorboard", "mlflow", "wandb", "weights and biases", "csv", "jsonl"],
    "reference/distributed": ["ddp", "fsdp", "multi gpu"],
    "guides/faults": ["false alarms of check", "benchmark of debugging tools", "UMLAUT", "SageMaker Debugger"],
    "guides/several_processes": ["ddp", "fsdp", "torchrun", "accelerate", "multi gpu", "multi node"],
    "guides/results": [
        *("confusion matrix", "top losses", "error analysis", "calibration", "interpretation", "wrong predictions", "got wrong"),
        *(
            "misclassified images",
            "worst predictions",
            "pictures",
            "how good is the model",
            "visualize predictions",
            "classification report",
            "explain the model",
        ),
    ],
    "reference/predictions": ["confusion matrix", "top losses", "inference", "predict"],
    "tutorials/steps": ["gan", "two optimizers", "custom training step", "training_step"],
    "tutorials/callback": [
        "own callback",
        "custom callback",
        "write a callback",
        "events",
        "LambdaCallback",
        "on_epoch_end",
        "on_train_begin",
        "on_batch_end",
    ],
    "tutorials/metrics": ["own metric", "custom metric"],
    "tutorials/resume": ["resume", "crash", "checkpoint", "kernel died"],
    "tutorials/week": [
        "experiment tracking example",
        "end to end example",
        "complete example",
        "hyperparameter tuning workflow",
        "classify digits",
    ],
    "tutorials/six_faults": ["debug a training", "model does not learn", "loss does not go down", "silent bugs"],
    "reference/stopping": ["ShortEpochCallback", "SkipToEpoch", "TerminateOnNaNCallback"],
    "insight/check": ["model does not learn", "loss does not go down", "loss stuck", "sanity check", "debug a training"],
    "reference/learner": [
        "trainer",
        "training loop",
        "fit",
        "model summary",
        "count parameters",
        "train more epochs",
        "fit again",
        "keep training",
    ],
    "reference/callback": ["own callback", "custom callback", "events", "on_epoch_end", "hooks into the training loop"],
    "callbacks/interpret": ["confusion matrix", "classification report"],
    "callbacks/mixup": ["mixup augmentation", "cutmix augmentation"],
    "reference/regularization": ["mixup augmentation", "cutmix augmentation"],
    "callbacks/profile": ["profiler"],
    "callbacks/batch_size": [
        "batch size finder",
        "which batch size",
        "choose the batch size",
        "largest batch size",
        "scale_batch_size",
        "auto_scale_batch_size",
    ],
    "callbacks/averaging": ["exponential moving average", "EMA", "SWA", "stochastic weight averaging", "average weights"],
    "reference/history": ["plot loss", "loss curve", "learning curve", "training curves", "plot history", "export history", "recorder"],
    "display/plots": ["plot loss", "loss curve", "learning curve", "training curves", "plot history"],
    "reference/hooks": ["forward hook", "activations", "feature maps", "hidden layers"],
    "insight/diagnose": ["good loss curve", "what the loss curve means", "interpret the curves"],
    "reference/diagnose": ["good loss curve", "what the loss curve means", "interpret the curves"],
    "display/compare": ["compare runs", "compare two fits"],
    "display/summary": [
        "model summary",
        "number of parameters",
        "layers of the model",
        "count parameters",
        "how many parameters",
        "torchsummary",
        "torchinfo",
    ],
}


@dataclass
class Page:
    """A page of the site: a notebook, or a list of what is below it."""

    name: str  # on the site, without an ending
    title: str
    about: str = ""  # one line
    below: list["Page"] = field(default_factory=list)
    groups: dict[str, list["Page"]] = field(default_factory=dict)  # the same pages under headings, if they have some

    def walk(self) -> Iterator["Page"]:
        yield self
        for page in self.below:
            yield from page.walk()


def page_name(relative: Path) -> Path:
    """Where the notebook at `relative` is on the site: without the number and the ending."""
    return relative.with_name(re.sub(r"^\d+[a-z]*_", "", relative.name)).with_suffix("")


def title_and_about(nb: NotebookNode) -> tuple[str, str]:
    """The heading of a notebook, and the line with `>` below it."""
    first = nb.cells[0].source.splitlines() if nb.cells else []
    title = next((line[2:].strip() for line in first if line.startswith("# ")), "")
    return title, next((line[1:].strip() for line in first if line.startswith(">")), "")


def sections(notebooks: dict[Path, NotebookNode], reference: Page | None = None) -> list[Page]:
    """What the side bar shows, from the top."""
    rooms: dict[str, list[Page]] = {}
    for path, nb in notebooks.items():
        if path != INDEX:
            title, about = title_and_about(nb)
            name = page_name(path.relative_to(NBS)).as_posix()
            rooms.setdefault("roof" if path.stem in SETTINGS["roof"].split() else room(path), []).append(Page(name, title or name, about))
    how_to = _questions(rooms.pop("how_to", []))
    top = [
        Page("tutorials/index", "Tutorials", "Longer pages to follow from the top", rooms.pop("tutorials", [])),
        Page("how_to/index", "How-to", "One question a page, the answer first", sum(how_to.values(), []), how_to),
        Page("guides/index", "Guides", "Background, measured", rooms.pop("guides", [])),
        *([reference] if reference else []),
    ]
    moving, roof = rooms.pop("moving", []), rooms.pop("roof", [])
    below = [_room(name, rooms[name]) for name in sorted(rooms, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))]
    about = "The library, notebook by notebook, with its code"
    top.append(Page("how_it_works/index", "How it works", about, [*below, *roof]))
    top.append(Page("moving/index", "Moving from ...", "The same training in your library and in cbnb", moving))
    return [page for page in top if page.below]


def _room(name: str, pages: list[Page]) -> Page:
    title, about = ROOMS.get(name, (name.capitalize(), ""))
    return Page(f"how_it_works/{name}", title, about, pages)


def _questions(pages: list[Page]) -> dict[str, list[Page]]:
    stems = {page.name.rpartition("/")[2]: page for page in pages}
    groups = {title: [stems.pop(name) for name in names if name in stems] for title, names in QUESTIONS.items()}
    groups["More"] = list(stems.values())
    return {title: found for title, found in groups.items() if found}


def rank(page: Page) -> float:
    return next((value for start, value in RANKS.items() if page.name.startswith(start)), 1.0)


def listing(page: Page) -> str:
    """The text of a page that only lists the pages below it."""
    lines = [f"# {page.title}", "", f"> {page.about}", ""]
    for title, pages in (page.groups or {"": page.below}).items():
        lines += [f"## {title}", ""] * bool(title)
        lines += [f"- {{doc}}`{_label(below.title)} </{below.name}>`{f': {below.about}' if below.about else ''}" for below in pages]
        lines += [""]
    return "\n".join([*lines, toctree(below.name for below in page.below), ""])


def contents(pages: Iterable[Page]) -> str:
    """The table of contents of the whole site, for its first page."""
    return toctree([f"{SETTINGS['title']} at a glance <self>", *(page.name for page in pages)], absolute=False)


def toctree(names: Iterable[str], absolute: bool = True) -> str:
    return "\n".join(["```{toctree}", ":hidden:", "", *(f"/{name}" if absolute else name for name in names), "```"])


def _label(title: str) -> str:
    return title.replace("`", "").replace("<", "\\<")
