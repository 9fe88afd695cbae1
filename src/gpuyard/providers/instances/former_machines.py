"""Machines of which a cloud tells no more: some clouds forget a machine as soon as it
has ended.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from gpuyard.providers.instances.api import Instance, InstanceState

REMEMBERED_S = 600.0
"""For so long a machine is told of that the cloud lists no more."""


class FormerMachines:
    """Adds to each listing of a cloud the machines of earlier listings, as GONE.

    `was_taken(machine)` says of one that is missing for the first time whether the
    cloud has taken it back.
    """

    def __init__(self, was_taken: Callable[[Instance], bool] = lambda _: False) -> None:
        self._was_taken = was_taken
        self._listed: dict[str, Instance] = {}
        # With the time (monotonic seconds) at which each was missed.
        self._gone: dict[str, tuple[Instance, float]] = {}

    def with_gone(self, listed: Iterable[Instance]) -> list[Instance]:
        """The machines of a new listing, and after them those that it lacks."""
        now = time.monotonic()
        found = {one.id: one for one in listed}
        for key in self._listed.keys() - found.keys():
            self._gone[key] = self._ended(self._listed[key]), now
        self._listed = {
            key: one
            for key, one in found.items()
            if one.state is not InstanceState.GONE
        }
        for key, (_, missed_at) in list(self._gone.items()):
            if key in found or now - missed_at > REMEMBERED_S:
                del self._gone[key]
        return [*found.values(), *(one for one, _ in self._gone.values())]

    def _ended(self, machine: Instance) -> Instance:
        is_taken = machine.interrupted or self._was_taken(machine)
        return replace(machine, state=InstanceState.GONE, interrupted=is_taken)
