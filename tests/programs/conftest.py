"""Programs name the faults that are still open: `faults = dict(table="N3")`, or one for all tests."""

import pytest


def pytest_collection_modifyitems(items):
    for item in items:
        faults = getattr(getattr(item, "cls", None), "faults", {})
        words = {"a_fit": "fit", "the_table": "table", "saved": "saved", "resumed": "resumed"}
        for word, name in words.items():
            if word in item.name.split("test_")[1] and (fault := faults if isinstance(faults, str) else faults.get(name)):
                item.add_marker(pytest.mark.xfail(strict=True, reason=fault))
                break
