"""No lab book outlives its test, whenever the learner that it belongs to is collected."""

import pytest

from cbnb.lab.book import LabBook
from cbnb.learner import Learner


@pytest.fixture(autouse=True)
def books_end_with_their_test():
    yield
    for book in {id(book): book for f in Learner.around_fits if isinstance(book := getattr(f, "__self__", None), LabBook)}.values():
        book.close()


@pytest.fixture
def lab(tmp_path):
    """A file whose tests need other settings has a fixture of its own."""
    book = LabBook(tmp_path / "runs")
    yield book
    book.close()
