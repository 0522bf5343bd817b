"""Programs in processes of their own, and in several at once, as `torchrun` would start them, under a time limit."""

import atexit
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from torch.distributed import TCPStore, fsdp

TESTS = Path(__file__).parent
CAN_SHARD = hasattr(fsdp, "fully_shard")  # since torch 2.6


@cache
def python() -> list[str]:
    """A command that is like `python`, for a program that may begin with torch and scikit-learn imported: this takes seconds of a core."""
    if sys.platform != "linux":
        return [sys.executable]
    import forked  # here, for programs that import this module do not find it

    until_the_end = ExitStack()
    atexit.register(until_the_end.close)
    folder = until_the_end.enter_context(tempfile.TemporaryDirectory(prefix="forks"))
    return [*until_the_end.enter_context(forked.server(Path(folder) / "forks", forked.PROGRAM)), "program"]


@dataclass
class Ended:
    returncode: int
    out: str
    err: str
    seconds: float  # after which it had ended


def environment(rank: int, n: int, port: int) -> dict[str, str]:
    there = dict(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=n, LOCAL_WORLD_SIZE=n, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    there |= dict(TORCHELASTIC_USE_AGENT_STORE=True, TORCHELASTIC_RESTART_COUNT=0)  # as with torchrun, the store is not in one of them
    path = os.pathsep.join([str(TESTS.parent), str(TESTS), os.environ.get("PYTHONPATH", "")])
    return os.environ | {k: str(v) for k, v in there.items()} | dict(OMP_NUM_THREADS="1", PYTHONPATH=path)


def start(n: int, *args: str) -> list[subprocess.Popen]:
    """Python with these arguments, n times; alone, without the variables of several processes"""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # the operating system chooses a free port
    command = [*python(), "-X", "faulthandler", "-W", "ignore", *args]
    started = [
        subprocess.Popen(command, env=environment(rank, n, store.port), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for rank in range(n)
    ]
    started[0].store = store  # as long as they run
    return started


def wait(started: list[subprocess.Popen], timeout: float = 240) -> list[Ended]:
    """What became of them; those that still run after so many seconds are ended, and say where they are"""
    begun, done = time.monotonic(), {}
    while len(done) < len(started) and time.monotonic() - begun < timeout:
        for rank, p in enumerate(started):
            if p.poll() is not None and rank not in done:
                done[rank] = time.monotonic()
        time.sleep(0.05)
    for p in started:
        if p.poll() is None:
            p.send_signal(signal.SIGABRT)
    said = [p.communicate() for p in started]
    return [Ended(p.returncode, *texts, done.get(rank, time.monotonic()) - begun) for rank, (p, texts) in enumerate(zip(started, said))]


def run(n: int, *args: str, timeout: float = 240) -> list[Ended]:
    return wait(start(n, *args), timeout)


def run_all(n: int, *args: str, timeout: float = 240) -> list[str]:
    """What each has printed; AssertionError with what they have said if one failed"""
    ended = run(n, *args, timeout=timeout)
    assert not any(e.returncode for e in ended), "\n".join(f"process {i}: {e.returncode}\n{e.err}" for i, e in enumerate(ended))
    return [e.out for e in ended]
