"""An instance per test, and one that tests which only look can share."""

from collections.abc import Iterator

import pytest

from tests.support.instance import TestInstance, make_instance


@pytest.fixture
def instance() -> Iterator[TestInstance]:
    """A fresh home of the test's own."""
    with make_instance() as made:
        yield made


@pytest.fixture(scope="module")
def shared_instance() -> Iterator[TestInstance]:
    """A running instance for the tests of one module that do not disturb each other."""
    with make_instance() as made:
        made.ok("up")
        yield made
