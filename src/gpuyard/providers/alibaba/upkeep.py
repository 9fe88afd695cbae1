"""The dead man's switch at Alibaba: each machine has a time at which Alibaba deletes
it, and gpuyard puts that off as long as it asks for its machines.

A machine cannot end itself at Alibaba: one that shuts down still costs. So this switch
does what its own cannot. Machines that have shut down are ended as soon as seen.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import structlog

from gpuyard.domain.errors import ProviderError
from gpuyard.providers.alibaba.client import AlibabaClient
from gpuyard.providers.alibaba.config import AlibabaConfig
from gpuyard.providers.alibaba.machines import STOPPED, seconds, time_text
from gpuyard.providers.instances.api import InstanceRef
from gpuyard.providers.kubernetes.fields import Json, text_at

# A time of release is put off when less than this part of `release_after_s` is left.
_LEFT = 2 / 3
log = structlog.get_logger(__name__)


class Upkeep:
    """Looks after machines beside the calls that list them; one round at a time."""

    def __init__(
        self,
        client: AlibabaClient,
        settings: AlibabaConfig,
        end: Callable[[Sequence[InstanceRef]], Awaitable[None]],
    ) -> None:
        self._client = client
        self._settings = settings
        self._end = end
        self._round: asyncio.Task[None] | None = None

    def begin(self, rows: Sequence[Json]) -> None:
        """Look after the machines of these rows of DescribeInstances, unless the last
        round is still under way.
        """
        stopped = [row for row in rows if text_at(row, "Status") == STOPPED]
        due = [row for row in rows if self._is_due(row)]
        is_busy = self._round is not None and not self._round.done()
        if is_busy or not (stopped or due):
            return
        self._round = asyncio.create_task(
            self._look_after(stopped, due), name="alibaba-upkeep"
        )

    async def close(self) -> None:
        """End the round that is under way."""
        if self._round is not None:
            self._round.cancel()
            await asyncio.wait([self._round])

    def _is_due(self, row: Json) -> bool:
        """Whether its release has to be put off."""
        after_s = self._settings.release_after_s
        if not after_s or text_at(row, "Status") == STOPPED:
            return False
        at = seconds(text_at(row, "AutoReleaseTime"))
        return at is None or at - time.time() < _LEFT * after_s

    async def _look_after(self, stopped: Sequence[Json], due: Sequence[Json]) -> None:
        """What fails for one machine holds up no other."""
        for row in due:
            await self._try(row, "keep it from being released", self._put_off)
        for row in stopped:
            await self._try(row, "end it", self._end_one)

    async def _try(
        self, row: Json, what: str, work: Callable[[Json], Awaitable[None]]
    ) -> None:
        try:
            await work(row)
        except ProviderError as error:
            log.warning(f"cannot {what}", machine=_id(row), error=str(error))

    async def _end_one(self, row: Json) -> None:
        await self._end([InstanceRef(text_at(row, "RegionId"), _id(row))])

    async def _put_off(self, row: Json) -> None:
        at = time.time() + self._settings.release_after_s
        await self._client.call(
            text_at(row, "RegionId"),
            "ModifyInstanceAutoReleaseTime",
            {"InstanceId": _id(row), "AutoReleaseTime": time_text(at)},
        )


def _id(row: Json) -> str:
    return text_at(row, "InstanceId")
