"""Identifiers: unique, in order of creation, and true UUIDv7."""

import threading
import time
import uuid
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.domain import ids
from gpuyard.domain.ids import made_at, new_id


@given(st.integers(min_value=2, max_value=500))
def test_ids_are_strictly_increasing(count):
    made = [new_id("job") for _ in range(count)]
    assert all(earlier < later for earlier, later in pairwise(made))


def test_ids_are_unique_across_threads():
    made: list[list[str]] = [[] for _ in range(4)]

    def work(mine: list[str]) -> None:
        mine += [new_id("job") for _ in range(2000)]

    threads = [threading.Thread(target=work, args=(mine,)) for mine in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({one for mine in made for one in mine}) == 8000
    assert all(mine == sorted(mine) for mine in made)


def test_the_first_id_of_a_time_comes_before_those_that_are_made_then():
    made = new_id("attempt")
    at = made_at(made)
    assert ids.first_id("attempt", at) < made < ids.first_id("attempt", at + 0.002)
    assert len(ids.first_id("attempt", at)) == len(made)


def test_an_id_is_a_uuid_of_version_7_behind_its_prefix():
    before = time.time_ns() // 1_000_000
    prefix, digits = new_id("attempt").split("_")
    value = uuid.UUID(digits)
    assert prefix == "attempt"
    assert len(digits) == 32
    assert value.variant == uuid.RFC_4122
    assert value.version == 7
    assert before <= value.int >> 80 <= time.time_ns() // 1_000_000 + 1


def test_order_holds_when_the_clock_is_set_back(monkeypatch: pytest.MonkeyPatch):
    first = new_id("job")
    monkeypatch.setattr(ids.time, "time_ns", lambda: 0)
    assert new_id("job") > first


def test_an_id_tells_when_it_was_made() -> None:
    before = time.time()
    assert made_at(new_id("ckpt")) == pytest.approx(before, abs=60)
