"""Runs tests on the pretend GPU: `PYTHONPATH=tests pytest -p pretend.plugin tests/gpu`. A race or a wrong device fails a test."""

import pytest

from pretend.gpu import PretendGPU

GPU = PretendGPU()


def pytest_configure(config):
    config.addinivalue_line("markers", "faulty: a test that makes the pretend GPU find something, and looks itself")
    GPU.__enter__()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    GPU.log.clear()
    GPU.faults.clear()
    GPU.flying.clear()
    GPU.ops.clear()
    result = yield
    GPU.check_pinned()
    if GPU.faults and item.get_closest_marker("faulty") is None:
        lines = [f"{text}\n    " + "\n    ".join(stack[-4:]) for text, stack in GPU.faults[:5]]
        pytest.fail("the pretend GPU found\n" + "\n".join(lines), pytrace=False)
    return result


@pytest.fixture
def gpu():
    return GPU
