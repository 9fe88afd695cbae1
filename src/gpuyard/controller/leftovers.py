"""What ended attempts have left at their external queues.

The end of an attempt waits for its output for a minute only. The rest is fetched in the
background, also by the next server. Only then does the provider forget the attempt.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import structlog

from gpuyard.controller.copied_logs import CopiedLogs
from gpuyard.controller.core import Core
from gpuyard.domain.errors import LedgerError, ProviderError
from gpuyard.domain.states import AttemptState
from gpuyard.providers.base import GpuProviderInterface
from gpuyard.scheduler.attempts import LiveAttempt

_FIRST_PAUSE_S = 5.0
_LONGEST_PAUSE_S = 600.0
_GIVE_UP_AFTER_S = 86_400.0
# For so long a machine that was rented for the attempt is kept, and paid.
_KEEP_MACHINE_S = 3600.0
log = structlog.get_logger(__name__)


class Leftovers:
    """Lets providers forget ended attempts once everything of them is here."""

    def __init__(
        self,
        core: Core,
        providers: Mapping[str, GpuProviderInterface],
        copied_logs: CopiedLogs,
    ) -> None:
        self._core = core
        self._providers = providers
        self._copied_logs = copied_logs
        # Since when what an attempt has left is fetched (monotonic seconds).
        self._fetched_since: dict[str, float] = {}

    def needs_machine(self, attempt_id: str) -> bool:
        """Whether something of the ended attempt is fetched, which the machine that was
        rented for it has.
        """
        since = self._fetched_since.get(attempt_id)
        return since is not None and time.monotonic() < since + _KEEP_MACHINE_S

    async def forget(self, provider: str, reference: str | None) -> None:
        """Let a provider forget an attempt; the next server tries again if it fails."""
        if reference:
            with suppress(ProviderError, OSError, TimeoutError):
                await self._providers[provider].forget_job(reference)

    def fetch_later(self, attempt: LiveAttempt) -> None:
        """Fetch what is missing in the background, and let the provider forget the
        attempt then.
        """
        self._fetched_since[attempt.id] = time.monotonic()
        self._core.spawn(self._fetch(attempt), "fetch-leftovers")

    async def forget_ended(
        self, provider: str, rows: Sequence[Mapping[str, Any]]
    ) -> None:
        """Go on with ended attempts where an earlier server may have been killed."""
        for row in rows:
            if self._copied_logs.is_cut_off(row["id"]):
                self.fetch_later(_attempt_of(row))
            else:
                await self.forget(provider, row["provider_ref"])

    async def _fetch(self, attempt: LiveAttempt) -> None:
        began = time.monotonic()
        pause_s = _FIRST_PAUSE_S
        while not await self._is_all_here(attempt):
            if time.monotonic() - began >= _GIVE_UP_AFTER_S:
                log.warning("what an attempt left is lost", attempt=attempt.id)
                self._copied_logs.give_up(attempt.id)
                break
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        await self.forget(attempt.provider, attempt.provider_ref)
        self._fetched_since.pop(attempt.id, None)

    async def _is_all_here(self, attempt: LiveAttempt) -> bool:
        try:
            kept, _ = await self._copied_logs.finish(attempt)
        except LedgerError:
            return False
        return kept


def _attempt_of(row: Mapping[str, Any]) -> LiveAttempt:
    """An ended attempt, from its row in the ledger."""
    return LiveAttempt(
        id=row["id"],
        job_id=row["job_id"],
        state=AttemptState.ENDED,
        token=row["token"],
        placements=(),
        created_at=row["created_at"],
        started_at=row["started_at"],
        provider=row["provider"],
        provider_ref=row["provider_ref"],
    )
