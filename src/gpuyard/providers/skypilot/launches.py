"""Launches that SkyPilot has accepted. It tells little of a cluster that it is still
making, and a launch may fail minutes after it was accepted.
"""

import time
from collections.abc import Mapping, Set
from dataclasses import replace
from typing import Any

from gpuyard.providers.instances.api import Instance, InstanceState, Market
from gpuyard.providers.skypilot.machines import instance_of

# For so long a market is left alone that SkyPilot could not provide.
_SOLD_OUT_S = 600.0
_SOLD_OUT = "ResourcesUnavailableError"


class AcceptedLaunches:
    """What was asked for, by the names of clusters, and which markets were sold out."""

    def __init__(self) -> None:
        self._asked_for: dict[str, Instance] = {}
        # By type, zone and spot: until when (monotonic seconds), and what was said.
        self._sold_out: dict[tuple[str, str, bool], tuple[float, str]] = {}

    def add(self, machine: Instance) -> None:
        """SkyPilot has accepted this one."""
        self._asked_for[machine.id] = machine

    @property
    def names(self) -> Set[str]:
        """The clusters of launches of which SkyPilot may still tell."""
        return frozenset(self._asked_for)

    def machines_in(
        self, answer: Mapping[str, Any], installation: str, names_before: Set[str]
    ) -> list[Instance]:
        """The machines in an answer of `clusters`, also those that are still being
        made, and those that could not be had.

        `names_before`: the `names` before SkyPilot was asked. Those that the answer
        lacks are forgotten.
        """
        clusters = [instance_of(row, installation) for row in answer["clusters"]]
        found = {one.id: self._completed(one) for one in clusters}
        for name in answer["launching"]:
            if name in self._asked_for:
                found.setdefault(name, self._asked_for[name])
        for name, fault in answer["failed"].items():
            if name in self._asked_for:
                found[name] = self._failed(name, found.get(name), fault)
        told_of = {*found, *answer["launching"], *answer["failed"]}
        for name in names_before - told_of:
            self._asked_for.pop(name, None)
        return list(found.values())

    def _completed(self, machine: Instance) -> Instance:
        """With what SkyPilot does not say of a cluster that it is still making."""
        asked = self._asked_for.get(machine.id)
        if asked is None or machine.type:
            return machine
        return replace(machine, zone=asked.zone, type=asked.type, spot=asked.spot)

    def _failed(
        self, name: str, listed: Instance | None, fault: Mapping[str, Any]
    ) -> Instance:
        asked = self._asked_for[name]
        said = fault["message"] or fault["kind"]
        if fault["kind"] == _SOLD_OUT:
            until = time.monotonic() + _SOLD_OUT_S
            self._sold_out[asked.type, asked.zone, asked.spot] = until, said
        # What is left of it is ended.
        state = InstanceState.ENDING if listed else InstanceState.GONE
        return replace(listed or asked, state=state, why=said)

    def with_problem(self, market: Market) -> Market:
        """The market, and why it cannot be had if it was sold out a while ago."""
        key = market.type.name, market.zone, market.spot
        until, said = self._sold_out.get(key, (0.0, ""))
        return replace(market, problem=said) if time.monotonic() < until else market
