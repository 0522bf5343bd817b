"""Jupyter kernels and Python programs that start in a tenth of the time: a server imports torch once, and forks for each of them.

A process that is started the usual way spends two seconds of a core on the import of torch, two more on the compiler that its first
optimizer imports, and 1.5 on scikit-learn. Only on Linux: elsewhere a process with torch
in it may not be forked.

python tools/forked.py --serve SOCKET MODULE ...       the server, with the modules that it imports
python tools/forked.py SOCKET kernel -f CONNECTION     a kernel, as Jupyter starts it
python tools/forked.py SOCKET program ARGUMENTS        like `python ARGUMENTS`: a file or -c CODE, and what follows

The process that asks the server lives as long as the one that is forked for it, has its exit status, and passes on its signals. Programs
with other options, such as -m, and those that lead a session start the usual way.
"""

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

NAME = "forked"  # of the kernel
# What nearly every page needs: the first optimizer of a process imports torch._dynamo, and the digits are scikit-learn's. Each takes as
# long as torch itself.
SLOW = "torch", "torch._dynamo", "sklearn.datasets", "sklearn.metrics"
# Not the package nor pyplot: cbnb looks at what a notebook has imported. Not ipywidgets: where it is imported before there is a shell,
# pages that are opened again find no widgets.
KERNEL = "ipykernel.kernelapp", *SLOW, "matplotlib.figure"
PROGRAM = *SLOW, "torch.distributed", "accelerate"
BACKEND = "module://matplotlib_inline.backend_inline"  # matplotlib reads it when it is imported; a kernel sets it later
PYTHON = "--python="  # before the arguments of a kernel: its sys.executable
HANDED_ON = signal.SIGINT, signal.SIGTERM, signal.SIGABRT


@contextlib.contextmanager
def server(address: Path, modules: tuple[str, ...], **env: str) -> Iterator[list[str]]:
    """The beginning of a command for which `kernel` or `program` and arguments are to follow. The server ends with the block."""
    command = [sys.executable, __file__, "--serve", str(address), *modules]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=os.environ | env)
    try:
        if not process.stdout.readline():
            raise RuntimeError("the server that forks did not start")
        yield [sys.executable, "-I", "-S", __file__, str(address)]
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def forked_kernels(folder: Path) -> Iterator[str]:
    """The name of a kernel that is forked, for Jupyter inside the block; "python3" where processes are not forked.

    Programs that it starts with `sys.executable` are forked, too. `folder` takes the sockets and the description of the kernel.
    """
    if sys.platform != "linux":
        yield "python3"
        return
    spec = folder / "share" / "kernels" / NAME
    spec.mkdir(parents=True)
    jupyter_path = os.pathsep.join(filter(None, [str(folder / "share"), os.environ.get("JUPYTER_PATH")]))
    kernels, programs = server(folder / "forks", KERNEL, MPLBACKEND=BACKEND), server(folder / "programs", PROGRAM)
    with kernels as command, programs as program, mock.patch.dict(os.environ, JUPYTER_PATH=jupyter_path):
        python = folder / "python"
        python.write_text(f'#!/bin/sh\nexec {shlex.join(program)} program "$@"\n')
        python.chmod(0o700)
        argv = [*command, "kernel", PYTHON + str(python), "-f", "{connection_file}"]
        (spec / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": NAME, "language": "python"}))
        yield NAME


def serve(address: str, modules: list[str]) -> None:
    """Fork for each connection."""
    import gc
    import importlib

    for name in modules:
        importlib.import_module(name)
    gc.freeze()  # else a process would copy the memory of all objects when it ends
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # processes that have ended are not waited for
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen(64)
        listening.settimeout(5)
        parent = os.getppid()
        print("ready", flush=True)
        while os.getppid() == parent:  # a killed parent has not ended its server
            try:
                client, _ = listening.accept()
            except TimeoutError:
                continue
            if os.fork() == 0:
                listening.close()
                return keep(client)
            client.close()


def keep(client: socket.socket) -> None:
    """Fork the process that was asked for, and tell how it ends; if its client is killed before, kill it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    head, streams, *_ = socket.recv_fds(client, 8, 3)
    wish = b""
    while len(wish) < int.from_bytes(head, "big"):
        wish += client.recv(1 << 20)
    wish = json.loads(wish)
    child = os.fork()
    if child == 0:
        client.close()
        return become(streams, **wish)
    for fd in (0, 1, 2, *streams):
        os.close(fd)
    client.sendall(child.to_bytes(8, "big"))
    threading.Thread(target=end_with, args=(client, child, wish["kind"]), daemon=True).start()
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(OSError):
        client.sendall(status.to_bytes(8, "big"))
    os._exit(0)


def end_with(client: socket.socket, child: int, kind: str) -> None:
    """Kill the child once the client is killed; a kernel with its own children, as Jupyter does."""
    if not client.recv(1):
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if kind == "kernel" else os.kill)(child, signal.SIGKILL)


def become(streams: list[int], kind: str, argv: list[str], env: dict[str, str], cwd: str) -> None:
    """The rest of the life of a forked process."""
    import random

    if kind == "kernel":
        os.setsid()
    for fd, stream in enumerate(streams):
        os.dup2(stream, fd)
        os.close(stream)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.path.remove(str(Path(__file__).parent))
    sys.path[:0] = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path and path not in sys.path]
    random.seed()  # the other processes have the same state
    if np := sys.modules.get("numpy"):
        np.random.seed()
    if kind == "kernel":
        run_kernel(argv)
    else:
        run_program(argv)


def run_kernel(argv: list[str]) -> None:
    """As `python -m ipykernel_launcher` does."""
    from ipykernel.kernelapp import IPKernelApp

    if argv[0].startswith(PYTHON):
        sys.executable, *argv = argv[0].removeprefix(PYTHON), *argv[1:]
    sys.argv = ["ipykernel_launcher", *argv]
    IPKernelApp.launch_instance(argv)


OPTIONS = ["-X", "faulthandler"], ["-W", "ignore"]


def is_simple(argv: list[str]) -> bool:
    """True if `run_program` knows the options."""
    while argv[:2] in OPTIONS:
        argv = argv[2:]
    return bool(argv) and (argv[0] == "-c" or not argv[0].startswith("-"))


def show_error(kind: type[BaseException], error: BaseException, traceback: types.TracebackType | None) -> None:
    """Python's own words for an uncaught error, without the frames of this file that began the program."""
    while traceback and traceback.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
        traceback = traceback.tb_next
    sys.__excepthook__(kind, error.with_traceback(traceback), traceback)


def run_program(argv: list[str]) -> None:
    """As `python` does, with its options -X faulthandler and -W ignore."""
    import faulthandler
    import runpy
    import warnings

    sys.excepthook = show_error
    while argv[:2] in OPTIONS:
        faulthandler.enable() if argv[0] == "-X" else warnings.simplefilter("ignore")
        argv = argv[2:]
    if argv[0] == "-c":
        sys.argv, code = ["-c", *argv[2:]], argv[1]
        sys.path.insert(0, "")
        sys.modules["__main__"] = main = types.ModuleType("__main__")
        exec(compile(code, "<string>", "exec"), vars(main))
    else:
        sys.argv = argv
        sys.path.insert(0, str(Path(argv[0]).resolve().parent))
        runpy.run_path(argv[0], run_name="__main__")


def ask(address: str, kind: str, argv: list[str]) -> None:
    """Have a process forked, pass on signals to it, and end as it ends."""
    leads = os.getsid(0) == os.getpid()  # the session may be killed as a whole, and a forked process would outlive it by a moment
    if kind == "program" and (leads or not is_simple(argv)):
        os.execv(sys.executable, [sys.executable, *argv])
    wish = json.dumps(dict(kind=kind, argv=argv, env=dict(os.environ), cwd=os.getcwd())).encode()
    child, early = 0, []

    def hand_on(number: int, frame: object = None) -> None:
        if not child:
            return early.append(number)
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if kind == "kernel" else os.kill)(child, number)

    for number in HANDED_ON:
        signal.signal(number, hand_on)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(address)
        socket.send_fds(client, [len(wish).to_bytes(8, "big")], [0, 1, 2])
        client.sendall(wish)
        child = int.from_bytes(client.recv(8), "big")
        for number in early:
            hand_on(number)
        status = int.from_bytes(client.recv(8), "big")
    if os.WIFSIGNALED(status):
        signal.signal(os.WTERMSIG(status), signal.SIG_DFL) if os.WTERMSIG(status) != signal.SIGKILL else None
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    first, second, *rest = sys.argv[1:]
    serve(second, rest) if first == "--serve" else ask(first, second, rest)
