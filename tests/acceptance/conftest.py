"""An instance per test, and one that tests which only look can share."""

from collections.abc import Iterator

import pytest

from tests.support.instance import TestInstance, make_instance
from tests.support.s3 import Bucket


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


@pytest.fixture(params=["folder", "bucket"])
def blob_place(request: pytest.FixtureRequest) -> Bucket | None:
    """Where an instance stores files: a bucket, or None for its own folder."""
    return request.getfixturevalue("bucket") if request.param == "bucket" else None


@pytest.fixture
def stored(blob_place: Bucket | None) -> Iterator[TestInstance]:
    """An instance that stores files in a folder, or in a bucket."""
    more = f'[storage]\nurl = "{blob_place.url}"\n' if blob_place else ""
    with make_instance() as made:
        made.home.create()
        made.home.settings.write_text(more)
        yield made
