"""Machines of which a cloud tells no more."""

from dataclasses import replace

import pytest

from gpuyard.providers.instances import former_machines
from gpuyard.providers.instances.api import Instance, InstanceState
from gpuyard.providers.instances.former_machines import FormerMachines

RUNNING = Instance(
    "i-1", "here", "here-1", "g1", True, InstanceState.RUNNING, "attempt_1"
)
OTHER = replace(RUNNING, id="i-2")
GONE = replace(RUNNING, state=InstanceState.GONE)


def test_what_a_listing_lacks_is_told_of_as_gone() -> None:
    former = FormerMachines()
    assert former.with_gone([RUNNING, OTHER]) == [RUNNING, OTHER]
    assert former.with_gone([OTHER]) == [OTHER, GONE]
    assert former.with_gone([OTHER]) == [OTHER, GONE]
    # A cloud may leave one out of a single listing.
    assert former.with_gone([RUNNING, OTHER]) == [RUNNING, OTHER]


def test_the_cloud_says_whether_it_was_taken_back() -> None:
    former = FormerMachines(lambda machine: machine.id == "i-1")
    former.with_gone([RUNNING, OTHER])
    taken = {one.id: one.interrupted for one in former.with_gone([])}
    assert taken == {"i-1": True, "i-2": False}
    noticed = FormerMachines()
    noticed.with_gone([replace(OTHER, interrupted=True)])
    assert [one.interrupted for one in noticed.with_gone([])] == [True]


def test_one_that_was_listed_as_gone_is_not_told_of_for_longer() -> None:
    former = FormerMachines()
    assert former.with_gone([GONE]) == [GONE]
    assert former.with_gone([]) == []


def test_it_is_told_of_for_a_while_only(monkeypatch: pytest.MonkeyPatch) -> None:
    former = FormerMachines()
    former.with_gone([RUNNING])
    assert former.with_gone([]) == [GONE]
    monkeypatch.setattr(former_machines, "REMEMBERED_S", -1.0)
    assert former.with_gone([]) == []
