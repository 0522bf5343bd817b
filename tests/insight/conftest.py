import math

import pytest


@pytest.fixture(autouse=True)
def small_trainings_without_a_clock(monkeypatch):
    """A small training ends after some time of the processor. Findings of tests must not depend on it."""
    monkeypatch.setattr("cbnb.insight.small_trainings.SECONDS", math.inf)
