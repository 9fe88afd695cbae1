"""Reads the warnings about Jobs that wait, with few requests, and in the background:
what they say of many Jobs holds up nobody who asks how others do.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gpuyard.domain.errors import ProviderError
from gpuyard.providers.kubernetes.api import KubernetesApi
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
    """What is known of one Job. Times are monotonic. `task` reads it anew."""

    waits_since: float
    pod: str = ""
    next_at: float = 0.0
    found: list[Json] = field(default_factory=list[Json])
    task: asyncio.Task[None] | None = None


class WarningReader:
    """The warnings about Jobs and their pods.

    At most `at_once` are read at the same time. `on_news` is called when some were.
    """

    def __init__(
        self, api: KubernetesApi, at_once: int, on_news: Callable[[], None]
    ) -> None:
        self._api = api
        self._on_news = on_news
        self._places = asyncio.Semaphore(at_once)
        self._readings: dict[str, _Reading] = {}

    def close(self) -> None:
        """Stop reading."""
        for name in list(self._readings):
            self.forget(name)

    def forget(self, name: str) -> None:
        """Drop what is kept of a Job."""
        reading = self._readings.pop(name, None)
        if reading is not None and reading.task is not None:
            reading.task.cancel()

    def warnings(self, name: str, pods: Sequence[str]) -> list[Json]:
        """What was read last about the Job that waits or, if it has pods, about the
        first of them; the newest last. It is read again if that is due.
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
        if now >= reading.next_at and reading.task is None:
            pause_s = max(_SHORTEST_PAUSE_S, (now - reading.waits_since) * _PAUSE_PART)
            reading.next_at = now + min(pause_s, _LONGEST_PAUSE_S)
            reading.task = asyncio.create_task(
                self._read(reading, pod or name), name=f"read-events-{name}"
            )
        return reading.found

    async def _read(self, reading: _Reading, involved: str) -> None:
        try:
            async with self._places:
                events, _ = await self._api.list_objects(
                    f"{self._api.namespaced}/events",
                    fieldSelector=f"involvedObject.name={involved},type=Warning",
                )
        except ProviderError:
            return  # it is read again
        finally:
            reading.task = None
        if involved == reading.pod or not reading.pod:
            reading.found = newest_last(events)
            self._on_news()
