"""A yard per test, and one that tests which only look can share."""

from collections.abc import Iterator

import pytest

from tests.support.yard import TestYard, make_yard


@pytest.fixture
def yard() -> Iterator[TestYard]:
    """A fresh home of the test's own."""
    with make_yard() as made:
        yield made


@pytest.fixture(scope="module")
def shared_yard() -> Iterator[TestYard]:
    """A running yard for the tests of one module that do not disturb each other."""
    with make_yard() as made:
        made.ok("up")
        yield made
