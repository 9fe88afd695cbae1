"""Asks what an attempt in an external queue uses over time, where its provider knows
that. On our own nodes the agent tells it.
"""

import asyncio
from collections.abc import Callable, Mapping

import structlog

from gpuyard.domain import wire
from gpuyard.domain.errors import ProviderError
from gpuyard.insight.usage_points import UsageSampler
from gpuyard.providers.base import GpuProviderInterface
from gpuyard.providers.program_use import ProgramUse
from gpuyard.scheduler.attempts import LiveAttempt

# Of a provider that says nothing so often, nothing is expected any more.
_MOST_SILENT = 3
# Of one that was first asked so long after its start, the peaks are not known.
_LATE_S = 60.0
log = structlog.get_logger(__name__)
Figures = Callable[[], Mapping[str, wire.GpuStatus]]
"""The newest readings of GPUs, by UUID."""


class QueueUse:
    """Asks for one attempt every `every_s`; `add` gets the points, as of an agent.
    `clock`: the server's (UTC seconds).
    """

    def __init__(
        self,
        provider: GpuProviderInterface,
        attempt: LiveAttempt,
        figures: Figures,
        every_s: float,
        clock: Callable[[], float],
        add: Callable[[list[wire.SeriesPoint]], None],
    ) -> None:
        self._provider = provider
        self._attempt = attempt
        self._every_s = every_s
        self._clock = clock
        self._add = add
        self._now = ProgramUse(0.0, 0.0)
        self._peak_mb = 0.0
        self._asked_since: float | None = None
        uuids = [uuid for place in attempt.placements for uuid in place.gpu_uuids]
        self._sampler = UsageSampler(
            self, uuids, lambda: [*figures().values()], attempt.created_at, every_s
        )

    def usage(self) -> ProgramUse:
        """What was told last."""
        return self._now

    def totals(self) -> dict[str, float]:
        """What it used until now, as an agent tells it at the end of an attempt; empty
        if that is not known. A server that has started meanwhile does not know what
        was used before, and too small peaks would advise too small machines.
        """
        if not self._peak_mb or self._began_late():
            return {}
        own = {"cpu_s": self._now.cpu_s, "peak_mb": self._peak_mb}
        whole = own | self._sampler.gpu_usage()
        return {name: round(value, 3) for name, value in whole.items()}

    def _began_late(self) -> bool:
        began = self._attempt.started_at
        since = self._asked_since
        return began is not None and since is not None and since - began > _LATE_S

    async def follow(self) -> None:
        """Ask again and again, until it is cancelled or the provider knows nothing."""
        silent = 0
        while silent < _MOST_SILENT:
            try:
                is_known = await self._look()
            except ProviderError as error:  # it may be back soon
                why = str(error)
                log.debug("its use is not known", attempt=self._attempt.id, error=why)
            except Exception:  # of no use to the job, which goes on
                log.exception("its use could not be read", attempt=self._attempt.id)
                return
            else:
                silent = 0 if is_known else silent + 1
            await asyncio.sleep(self._every_s)

    async def _look(self) -> bool:
        """Ask once; whether the provider knows something."""
        found = await self._provider.use_of(self._attempt.provider_ref or "")
        if found is None:
            return False
        now = self._clock()
        if self._asked_since is None:
            self._asked_since = now
        self._now = found
        self._peak_mb = max(self._peak_mb, found.rss_mb)
        self._add(self._sampler.sample(now))
        return True
