"""A job's output as one stream, over its attempts."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from gpuyard.controller.core import Core
from gpuyard.domain.errors import NotFoundError, ProviderError
from gpuyard.domain.states import JobState
from gpuyard.providers.base import GpuProviderInterface, StreamsLogs

_LOOK_AGAIN_S = 5.0
_PART = 1 << 20
Row = dict[str, Any]


class Logs:
    """Output of jobs. `news(timeout_s)` returns when something happened, or after the timeout; `kept(attempt_id)` is
    where the output of one lies that ran on an engine."""

    def __init__(
        self,
        core: Core,
        providers: Mapping[str, GpuProviderInterface],
        news: Callable[[float], Awaitable[object]],
        kept: Callable[[str], Path],
    ) -> None:
        self._core = core
        self._kept = kept
        self._providers = providers
        self._news = news

    async def read(
        self, job_id: str, *, lines: int | None = None, follow: bool = False, number: int | None = None
    ) -> AsyncIterator[bytes]:
        """The last attempt's output, or attempt `number`'s; with `lines`, the last so many of it.

        With `follow` it goes on until the job is over, through the attempts that come.
        """
        if not follow or number is not None:
            attempt = self._chosen(job_id, number)
            if attempt:
                async for part in self._of_attempt(attempt, lines, follow):
                    yield part
            return
        shown = max(len(self._attempts(job_id)) - 1, 0)
        while True:
            for attempt in self._attempts(job_id)[shown:]:
                async for part in self._of_attempt(attempt, lines, follow=True):
                    yield part
                shown, lines = shown + 1, None
            row = self._core.queries.job(job_id)
            if row is None or JobState(row["state"]).terminal:
                return
            await self._news(_LOOK_AGAIN_S)

    def _attempts(self, job_id: str) -> list[Row]:
        return self._core.queries.attempts_of([job_id]).get(job_id, [])

    def _chosen(self, job_id: str, number: int | None) -> Row | None:
        attempts = self._attempts(job_id)
        if number is None:
            return attempts[-1] if attempts else None
        found = [attempt for attempt in attempts if attempt["number"] == number]
        if not found:
            raise NotFoundError(f"Job {job_id} has no attempt {number}.", f"It has {len(attempts)}.")
        return found[0]

    async def _of_attempt(self, attempt: Row, lines: int | None, follow: bool) -> AsyncIterator[bytes]:
        provider = self._providers.get(attempt["provider"])
        kept = self._kept(attempt["id"])
        if attempt["id"] not in self._core.view.attempts and kept.exists():
            async for part in _read_file(kept, lines):
                yield part
            return
        if provider is None:
            return
        if not isinstance(provider, StreamsLogs):
            yield (await provider.get_job_logs(attempt["provider_ref"], lines)).encode()
            return
        sent = 0
        while True:
            # What an engine calls it is not known before it has answered.
            known = self._core.view.attempts.get(attempt["id"])
            reference = (known and known.provider_ref) or attempt["provider_ref"] or attempt["id"]
            try:
                async for part in provider.stream_logs(reference, lines=lines, follow=follow):
                    sent += len(part)
                    yield part
                fault = None
            except ProviderError as error:
                fault = error
            live = attempt["id"] in self._core.view.attempts
            if not live and not sent and kept.exists():  # it came, went and was forgotten between two looks
                async for part in _read_file(kept, lines):
                    yield part
                return
            if fault is None:
                return
            # An attempt that never reached its agent has no log; one whose agent is away will have it again.
            if fault.error_code == "JOB_NOT_FOUND" and not (follow and live):
                return
            if not follow or sent:
                raise fault
            await self._news(_LOOK_AGAIN_S)


async def _read_file(path: Path, lines: int | None) -> AsyncIterator[bytes]:
    """A file that is complete, or its last lines."""
    with path.open("rb") as file:
        if lines is not None:
            yield b"".join(deque(file, lines))
            return
        while part := await asyncio.to_thread(file.read, _PART):
            yield part
