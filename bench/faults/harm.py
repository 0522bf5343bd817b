"""Does a fault harm? Trains healthy and faulty programs with several seeds, and stores what came out."""

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from fault_tasks import TASKS, WORST, Training, make_task
from mutators import MUTATORS, Mutator
from ports import PORTS, Port

STORED = Path(__file__).with_name("verified.json")
SEEDS, PORT_SEEDS = (0, 1, 2), (0, 1, 2, 3, 4)
MARGIN = 0.03  # a fault harms if the mean score is worse by this, by 15% and by two standard deviations of the healthy scores


def outcome(t: Training) -> tuple[float, float, str]:
    """Score on the test part, how far the reported metric is from that on the test part (in its own unit), and an error."""
    try:
        learn = t.learner()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            t.fit(learn)
            gap = 0.0
            if t.valid and t.honest:
                with learn.no_bar(), learn.no_logging():
                    reported = float(learn.validate()[-1]) if t.metric else float("nan")
                out, y = t.outputs()
                true = float(t.honest(out, y))
                gap = abs(reported - true) / (float(y.float().std()) if t.kind == "numbers" else 1.0)
            score = t.score(*t.outputs())
    except Exception as error:
        return WORST, 0.0, f"{type(error).__name__}: {str(error)[:80]}"
    return (min(score, WORST) if np.isfinite(score) else WORST), min(gap, WORST) if np.isfinite(gap) else 0.0, ""


def trial(task: str, seed: int, mutator: Mutator | None = None) -> tuple[float, float, str] | None:
    t = make_task(task, seed)
    if mutator and mutator.change(t) is False:
        return None
    return outcome(t)


def of_task(task: str, mutators: dict[str, Mutator]) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for name in ("", *mutators):
        found = [trial(task, seed, mutators.get(name)) for seed in SEEDS]
        if None not in found:
            scores, gaps, errors = zip(*found)
            rows[name or "healthy"] = dict(score=[round(s, 4) for s in scores], gap=[round(g, 4) for g in gaps], error=errors[0])
    return rows


def of_ports(ports: dict[str, Port]) -> dict[str, Any]:
    return {
        p.name: {kind: [round(outcome(p.make(seed, kind == "fixed"))[0], 4) for seed in PORT_SEEDS] for kind in ("broken", "fixed")}
        for p in ports.values()
    }


def does_harm(healthy: dict[str, Any], faulty: dict[str, Any], where: str) -> bool:
    """On average of the seeds, by the margin; a fault of the report: the reported metric is further from the true one."""
    key = "score" if where == "model" else "gap"
    by = max(MARGIN, 0.15 * np.mean(healthy[key]) if key == "score" else 0.0, 2 * np.std(healthy[key], ddof=1))
    return bool(np.mean(faulty[key]) > np.mean(healthy[key]) + by)


def harmful(mutators: dict[str, Mutator], path: Path) -> list[tuple[str, str]]:
    """Task and mutator of the pairs that harm, by the measurements stored in the file."""
    stored = json.loads(path.read_text())
    pairs = [(task, m) for m in mutators.values() for task in m.tasks if m.name in stored.get(task, {})]
    return [(task, m.name) for task, m in pairs if does_harm(stored[task]["healthy"], stored[task][m.name], m.where)]


def harms(stored: dict[str, Any], task: str, mutator: str) -> bool:
    return does_harm(stored[task]["healthy"], stored[task][mutator], MUTATORS[mutator].where)


def port_holds(stored: dict[str, Any], name: str) -> bool:
    """Fails with each seed before the fix, and passes with each after it."""
    row, limit = stored["ports"][name], PORTS[name].limit
    return min(row["broken"]) > limit >= max(row["fixed"])


def verify(tasks: Sequence[str] = TASKS, path: Path = STORED, ports: bool = True) -> None:
    stored = json.loads(path.read_text()) if path.exists() else {}
    for task in tasks:
        stored[task] = of_task(task, MUTATORS)
        print(task, len(stored[task]) - 1, "faults", flush=True)
        path.write_text(json.dumps(stored) + "\n")
    if ports:
        stored["ports"] = of_ports(PORTS)
        path.write_text(json.dumps(stored) + "\n")


def verify_second(mutators: dict[str, Mutator], ports: dict[str, Port], path: Path) -> None:
    """The second set: the pairs that its author chose, as they stand in the file, which is written again."""
    stored = json.loads(path.read_text())
    for task in stored:
        stored[task] = (
            of_ports(ports) if task == "ports" else of_task(task, {name: mutators[name] for name in stored[task] if name in mutators})
        )
        print(task, len(stored[task]), flush=True)
        path.write_text(json.dumps(stored) + "\n")


def verify_set(mutators: dict[str, Mutator], path: Path) -> None:
    """A later set: each fault in the tasks that its author named."""
    stored: dict[str, Any] = {}
    for task in TASKS:
        if named := {name: m for name, m in mutators.items() if task in m.tasks}:
            stored[task] = of_task(task, named)
            print(task, len(stored[task]) - 1, "faults", flush=True)
            path.write_text(json.dumps(stored) + "\n")
