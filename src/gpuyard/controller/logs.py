"""The output of a job as one stream, through all its attempts."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from gpuyard.controller.core import Core
from gpuyard.domain.errors import NotFoundError, ProviderError
from gpuyard.domain.states import JobState
from gpuyard.providers.base import GpuProviderInterface

_LONGEST_WAIT_S = 5.0
# A reader that does not read holds two of these in memory.
_PART_BYTES = 1 << 16
Row = dict[str, Any]


class Logs:
    """The output of jobs.

    `wait_for_event(timeout_s)` returns after the next event or the timeout.
    `copy_path(attempt_id)` is where the output of an attempt in an external queue is
    copied to.
    """

    def __init__(
        self,
        core: Core,
        providers: Mapping[str, GpuProviderInterface],
        wait_for_event: Callable[[float], Awaitable[object]],
        copy_path: Callable[[str], Path],
    ) -> None:
        self._core = core
        self._copy_path = copy_path
        self._providers = providers
        self._wait_for_event = wait_for_event

    async def read(
        self,
        job_id: str,
        *,
        lines: int | None = None,
        follow: bool = False,
        number: int | None = None,
    ) -> AsyncIterator[bytes]:
        """The output of the last attempt or of attempt `number`; with `lines`, only its
        last lines.

        With `follow`, it goes on until the end of the attempt `number`; without a
        number, through all later attempts until the end of the job.
        """
        if not follow or number is not None:
            attempt = self._attempt(job_id, number)
            if attempt:
                async for part in self._attempt_output(attempt, lines, follow):
                    yield part
            return
        shown = max(len(self._attempts(job_id)) - 1, 0)
        while True:
            for attempt in self._attempts(job_id)[shown:]:
                async for part in self._attempt_output(attempt, lines, follow=True):
                    yield part
                shown += 1
                lines = None
            row = self._core.queries.job(job_id)
            if row is None or JobState(row["state"]).terminal:
                return
            await self._wait_for_event(_LONGEST_WAIT_S)

    def _attempts(self, job_id: str) -> list[Row]:
        return self._core.queries.attempts_of([job_id]).get(job_id, [])

    def _attempt(self, job_id: str, number: int | None) -> Row | None:
        """Attempt `number`, or the last one, if there is any."""
        attempts = self._attempts(job_id)
        if number is None:
            return attempts[-1] if attempts else None
        found = [attempt for attempt in attempts if attempt["number"] == number]
        if not found:
            raise NotFoundError(
                f"Job {job_id} has no attempt {number}.", f"It has {len(attempts)}."
            )
        return found[0]

    async def _attempt_output(
        self, attempt: Row, lines: int | None, follow: bool
    ) -> AsyncIterator[bytes]:
        provider = self._providers.get(attempt["provider"])
        copy = self._copy_path(attempt["id"])
        if not self._is_live(attempt) and copy.exists():
            async for part in _read_file(copy, lines):
                yield part
            return
        if provider is None:
            return
        sent = 0
        while True:
            reference = self._reference(attempt)
            problem: ProviderError | None = None
            try:
                async for part in provider.stream_logs(
                    reference, lines=lines, follow=follow
                ):
                    sent += len(part)
                    yield part
            except ProviderError as error:
                problem = error
            live = self._is_live(attempt)
            if not live and not sent and copy.exists():
                # The attempt ended, and its provider has already forgotten it.
                async for part in _read_file(copy, lines):
                    yield part
                return
            if problem is None:
                return
            # An attempt that never reached its agent has no log. The log of an agent
            # that is not connected is back later.
            if problem.error_code == "JOB_NOT_FOUND" and not (follow and live):
                return
            if not follow or sent:
                raise problem
            await self._wait_for_event(_LONGEST_WAIT_S)

    def _is_live(self, attempt: Row) -> bool:
        return attempt["id"] in self._core.view.attempts

    def _reference(self, attempt: Row) -> str:
        """The provider's name for the attempt, which may be newer than its row."""
        live = self._core.view.attempts.get(attempt["id"])
        if live and live.provider_ref:
            return live.provider_ref
        return attempt["provider_ref"] or attempt["id"]


async def _read_file(path: Path, lines: int | None) -> AsyncIterator[bytes]:
    """The file, which is complete, or its last lines."""
    with path.open("rb") as file:
        if lines is not None:
            await asyncio.to_thread(seek_last_lines, file, lines)
        while part := await asyncio.to_thread(file.read, _PART_BYTES):
            yield part


def seek_last_lines(file: BinaryIO, lines: int) -> None:
    """Move to the start of the last `lines` lines, however long they are."""
    end = file.seek(0, os.SEEK_END)
    if lines == 0 or end == 0:
        return
    # The newline at the end of the file ends its last line, and begins no other.
    position = end - 1
    while position > 0:
        size = min(_PART_BYTES, position)
        file.seek(position - size)
        block = file.read(size)
        newlines = block.count(b"\n")
        if newlines >= lines:
            break
        lines -= newlines
        position -= size
    else:
        file.seek(0)
        return
    begin = size
    for _ in range(lines):
        begin = block.rfind(b"\n", 0, begin)
    file.seek(position - size + begin + 1)
