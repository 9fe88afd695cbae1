"""Reads what programs in external queues log to files, from those of their folders
that this host sees.
"""

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from gpuyard.domain.errors import ProviderError
from gpuyard.providers.base import GpuProviderInterface
from gpuyard.providers.job_folders import LoggingFolder
from gpuyard.scheduler.attempts import LiveAttempt
from gpuyard.storage.place import in_background
from gpuyard.storage.untrusted import open_beneath

if TYPE_CHECKING:
    from gpuyard.insight.scalar_files import LoggedScalars, ScalarReader

_FIRST_S = 1.0
_LATER_S = 5.0
# A disk that hangs must not keep a job from ending.
_LAST_S = 10.0
log = structlog.get_logger(__name__)


class LoggedScalarFiles:
    """Reads the files of one attempt; `add` gets what is new."""

    def __init__(
        self,
        provider: GpuProviderInterface,
        attempt: LiveAttempt,
        workdir: str | None,
        add: Callable[["LoggedScalars"], None],
    ) -> None:
        self._provider = provider
        self._attempt = attempt
        self._workdir = workdir
        self._add = add
        self._folder: LoggingFolder | None = None
        self._reader: ScalarReader | None = None
        # One look at a time; a look in a thread outlives its task.
        self._looking = asyncio.Lock()

    async def follow(self) -> None:
        """Look again and again, until it is cancelled."""
        pause_s = _FIRST_S
        while True:
            rest_s = self._reader.rest_s if self._reader else 0.0
            await asyncio.sleep(max(pause_s, rest_s))
            await asyncio.shield(self._look())
            pause_s = _LATER_S

    async def finish(self) -> None:
        """The program has ended: take the last of it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_S):
                await self._look(last=True)

    async def _look(self, *, last: bool = False) -> None:
        async with self._looking:
            try:
                reader = await self._opened()
                if reader is None:
                    return
                found = await in_background(reader.look, last=last)
            except (ProviderError, OSError) as error:
                why = str(error)
                log.debug("no event files yet", attempt=self._attempt.id, error=why)
                return
            except Exception:  # what a program writes is anything, and the job goes on
                log.exception("event files could not be read", attempt=self._attempt.id)
                return
            if found:
                self._add(found)

    async def _opened(self) -> "ScalarReader | None":
        """The reader of its folder; None while there is none."""
        reference = self._attempt.provider_ref or ""
        folder = await self._provider.logging_folder(reference, self._workdir)
        if folder is None:
            return None
        self._folder = folder
        if self._reader is None:
            # Late: few servers have an external queue.
            from gpuyard.insight.scalar_files import ScalarReader

            self._reader = ScalarReader(
                folder.path, self._attempt.created_at, self._own, open_beneath
            )
        return self._reader

    def _own(self, names: Collection[str]) -> Collection[str]:
        """Those of the files that are the attempt's."""
        from gpuyard.insight.scalar_files import names_writer

        folder = self._folder
        if folder is None or not folder.host:
            return names
        return [name for name in names if names_writer(name, folder.host, folder.pids)]
