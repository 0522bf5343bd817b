"""Kernels of several versions of ipykernel: the installed one, and those that lie in <environment>/other."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import pytest

import notebooks

INSTALLED = version("ipykernel")
WANTED = (INSTALLED, "6.31.0")  # without the second one its tests are skipped
OTHER = Path(os.environ.get("OTHER_KERNELS") or Path(sys.prefix) / "other")  # folders ipykernel-*, each made with pip install --target


def kernel_versions() -> dict[str, str]:
    """The versions that can be run -> what must come first in PYTHONPATH, '' for the installed one."""
    infos = sorted(OTHER.glob("ipykernel-*/ipykernel-*.dist-info"))
    others = {info.name.removeprefix("ipykernel-").removesuffix(".dist-info"): str(info.parent) for info in infos}
    return {INSTALLED: ""} | {name: path for name, path in others.items() if name != INSTALLED}


def kernel_params() -> list:
    """For `pytest.mark.parametrize` and the params of fixtures: all versions, a missing one with the reason why it is skipped."""
    found = kernel_versions()
    reason = f"ipykernel {{}} is not in {OTHER}: make test puts it there"
    missing = [pytest.param(name, marks=pytest.mark.skip(reason.format(name))) for name in WANTED if name not in found]
    return [*found, *missing]


@contextmanager
def kernels_of(name: str) -> Iterator[None]:
    """Kernels (and servers of kernels) started inside run version `name`, this checkout's package and no personal profile."""
    before, path = os.environ.get("PYTHONPATH"), kernel_versions()[name]
    if path:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [path, before]))
    try:
        with notebooks.clean_kernels():
            yield
    finally:
        if before is None:
            os.environ.pop("PYTHONPATH", None)
        else:
            os.environ["PYTHONPATH"] = before


def of_the_fit(messages: list[dict]) -> list[dict]:
    """Displays and their updates, but those of the button that takes a fit back: it has an output of its own, without text."""
    return [m for m in messages if "display_data" in m["msg_type"] and m["content"]["data"].get("text/plain")]
