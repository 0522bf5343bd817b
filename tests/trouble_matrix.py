"""Every trouble of one process in every place of a fit, with DistributedDataParallel and with `fully_shard`, in 2 and in 4 processes.

python tests/trouble_matrix.py            some 600 fits, and 96 starts of processes that are killed or exit: a quarter of an hour
python tests/trouble_matrix.py kill 4     only the kills, only 4 processes

`make test` runs the cases without kills and exits for DistributedDataParallel, and some of the others. This script prints a row for each
kind of trouble, with the number of places, what went wrong, and the longest time from a kill to the end of the last process.
"""

import json
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tools"))  # processes start quickly from there

import processes
from trouble_cases import CASES, ENDS, ENDS_AT, HOWS, wrong

LIMIT = 10  # seconds from a failure to the end of all processes


def at_once(n: int, mode: str, hows: list[str]) -> dict[str, tuple[int, list[str]]]:
    """For each kind of trouble that processes survive: the number of places, and what went wrong"""
    with tempfile.TemporaryDirectory() as folder:
        ended = processes.run(n, "tests/trouble_cases.py", folder, *hows, *[mode] * bool(mode), timeout=1500)
        if failed := [e for e in ended if e.returncode]:
            return {how: (0, [failed[0].err[-2000:]]) for how in hows}
        found = [json.loads(Path(folder, f"trouble_{rank}.json").read_text()) for rank in range(n)]
    said = lambda how: [f"{where}: {what}" for where in CASES[how] if (what := wrong(how, where, found, strict=not mode))]
    return {how: (len(CASES[how]), said(how)) for how in hows}


def ends(n: int, mode: str, how: str, where: str) -> tuple[str, float]:
    """What went wrong when a process was killed, or exited, and after how many seconds all had ended"""
    begun = time.time()
    *others, last = processes.run(n, "tests/trouble_cases.py", "-", how, where, *[mode] * bool(mode), timeout=120)
    if last.returncode != ENDS[how]:
        return f"the last process ended with {last.returncode}: {last.err[-500:]}", 0.0
    spent = begun + max(e.seconds for e in (*others, last)) - float(last.out.split("now ")[1].split()[0])
    for other in others:
        if other.returncode != 1 or not any(words in other.out for words in ("another process", "process ")):
            return f"another process ended with {other.returncode}: {other.out[-300:]} {other.err[-500:]}", spent
    return f"{spent:.0f} s" * (spent > LIMIT), spent


def main() -> None:
    asked = sys.argv[1:]
    counts = [n for n in (2, 4) if str(n) in asked] or [2, 4]
    hows = [how for how in (*HOWS, *ENDS) if how in asked] or [*HOWS, *ENDS]
    modes = [mode for mode in ("", "sharded") if not mode or "whole" not in asked]
    bad = 0
    print("| processes | model | trouble | places | wrong | longest, s |\n|---|---|---|---|---|---|", flush=True)
    for n in counts:
        for mode in modes:
            rows = at_once(n, mode, alive) if (alive := [how for how in hows if how in CASES]) else {}
            for how in (how for how in hows if how in ENDS):
                each = {where: ends(n, mode, how, where) for where in ENDS_AT}
                rows[how] = (len(each), [f"{where}: {what}" for where, (what, _) in each.items() if what], max(t for _, t in each.values()))
            for how, (places, said, *longest) in rows.items():
                bad += len(said)
                print(
                    f"| {n} | {mode or 'whole'} | {how} | {places} | {len(said)} | {', '.join(f'{t:.1f}' for t in longest)} |", flush=True
                )
                print(*said, sep="\n", file=sys.stderr, flush=True)
    sys.exit(bad > 0)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts programs in the background without it
    main()
