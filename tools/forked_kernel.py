"""Kernels that start in a third of the time: a server imports what each notebook needs, once, and forks for each kernel.

A kernel that is started the usual way spends two seconds of a core on the import of torch, before the first cell. Only on Linux: elsewhere a
process with torch in it may not be forked.

python tools/forked_kernel.py --serve SOCKET               the server
python tools/forked_kernel.py SOCKET -f CONNECTION_FILE    what Jupyter starts: asks the server for a kernel, and lives as long as that
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

NAME = "forked"  # of the kernel
# Neither the package nor pyplot: cbnb looks at what a notebook has imported
IMPORTED = "ipykernel.kernelapp", "torch", "matplotlib.figure", "ipywidgets"
BACKEND = "module://matplotlib_inline.backend_inline"  # matplotlib reads it when it is imported; a kernel sets it later


@contextlib.contextmanager
def forked_kernels(folder: Path) -> Iterator[str]:
    """The name of a kernel that is forked, for Jupyter inside the block; "python3" where processes are not forked.

    `folder` takes the socket and the description of the kernel.
    """
    if sys.platform != "linux":
        yield "python3"
        return
    address = folder / "forks"
    spec = folder / "share" / "kernels" / NAME
    spec.mkdir(parents=True)
    argv = [sys.executable, "-I", "-S", __file__, str(address), "-f", "{connection_file}"]
    (spec / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": NAME, "language": "python"}))
    jupyter_path = os.pathsep.join(filter(None, [str(folder / "share"), os.environ.get("JUPYTER_PATH")]))
    command = [sys.executable, __file__, "--serve", str(address)]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={"MPLBACKEND": BACKEND} | os.environ)
    try:
        if not server.stdout.readline():
            raise RuntimeError("the server of kernels did not start")
        with mock.patch.dict(os.environ, JUPYTER_PATH=jupyter_path):
            yield NAME
    finally:
        server.kill()
        server.wait()


def serve(address: str) -> None:
    """Fork for each connection."""
    import importlib

    for name in IMPORTED:
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # kernels that have ended are not waited for
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen(64)
        print("ready", flush=True)
        while True:
            client, _ = server.accept()
            if os.fork() == 0:
                server.close()
                become_kernel(client)
            client.close()


def become_kernel(client: socket.socket) -> None:
    """The rest of the life of a forked process; it ends with that of its client."""
    import random

    import numpy as np
    from ipykernel.kernelapp import IPKernelApp

    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with client.makefile("r") as lines:
        wish = json.loads(lines.readline())
    threading.Thread(target=end_with, args=(client,), daemon=True).start()
    os.environ.clear()
    os.environ.update(wish["env"])
    os.chdir(wish["cwd"])
    sys.path.remove(str(Path(__file__).parent))
    random.seed()  # the other kernels have the same state
    np.random.seed()
    sys.argv = ["ipykernel_launcher", *wish["argv"]]
    IPKernelApp.launch_instance(wish["argv"])
    os._exit(0)


def end_with(client: socket.socket) -> None:
    """Kill this process and its children once the client is killed."""
    client.recv(1)
    os.killpg(0, signal.SIGKILL)


def ask(address: str, argv: list[str]) -> None:
    """Have a kernel forked, and wait until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Jupyter interrupts a kernel before it kills it, which is enough here
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        server.sendall(json.dumps({"argv": argv, "env": dict(os.environ), "cwd": os.getcwd()}).encode() + b"\n")
        server.recv(1)


if __name__ == "__main__":
    first, *rest = sys.argv[1:]
    serve(*rest) if first == "--serve" else ask(first, rest)
