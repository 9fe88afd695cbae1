"""Reads the warnings about Jobs that wait, with few requests."""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from gpuyard.providers.kubernetes.api import ApiError, KubernetesApi
from gpuyard.providers.kubernetes.events import newest_last
from gpuyard.providers.kubernetes.fields import Json

# A job that waits for a moment only costs no request. Later, the events of a job that
# has waited for long are read less often.
_FIRST_READ_S = 1.0
_SHORTEST_PAUSE_S = 5.0
_LONGEST_PAUSE_S = 60.0
_PAUSE_PART = 0.1


@dataclass(slots=True)
class _Reading:
    """What is known of one Job. Times are monotonic."""

    waits_since: float
    pod: str = ""
    next_at: float = 0.0
    found: list[Json] = field(default_factory=list[Json])


class EventReader:
    """The warnings about Jobs and their pods."""

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api
        self._readings: dict[str, _Reading] = {}

    def forget(self, name: str) -> None:
        """Drop what is kept of a Job."""
        self._readings.pop(name, None)

    async def warnings(self, name: str, pods: Sequence[str]) -> list[Json]:
        """The warnings about the Job that waits or, if it has pods, about the first of
        them; the newest last.
        """
        now = time.monotonic()
        reading = self._readings.setdefault(
            name, _Reading(now, next_at=now + _FIRST_READ_S)
        )
        pod = pods[0] if pods else ""
        if pod != reading.pod:
            # What was said of the Job no longer counts.
            reading.pod = pod
            reading.found = []
            reading.next_at = min(reading.next_at, now + _FIRST_READ_S)
        if now >= reading.next_at:
            pause_s = max(_SHORTEST_PAUSE_S, (now - reading.waits_since) * _PAUSE_PART)
            reading.next_at = now + min(pause_s, _LONGEST_PAUSE_S)
            reading.found = await self._read(pod or name)
        return reading.found

    async def _read(self, involved: str) -> list[Json]:
        with suppress(ApiError):
            events, _ = await self._api.list_objects(
                f"{self._api.namespaced}/events",
                fieldSelector=f"involvedObject.name={involved},type=Warning",
            )
            return newest_last(events)
        return []
