"""The machines that a cloud has for us: a listing that many callers share, and the end
of those that nobody needs.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Self

import structlog

from gpuyard.domain.errors import ProviderError
from gpuyard.providers.instances.api import (
    Instance,
    InstanceApi,
    InstanceRef,
    InstanceState,
    Market,
)
from gpuyard.providers.shared_call import SharedCall

# A cloud may not list a machine in the first seconds after it was launched.
_LISTED_AFTER_S = 60.0
# A machine that was told to end and still lives is told again after this time.
_END_AGAIN_S = 30.0
# No machine is launched before its owner is known, so this is for a view that is just
# being read again.
_GRACE_S = 10.0
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RentedMachine:
    """A machine that costs money, and what it has cost so far; None if its price is not
    known.
    """

    instance: Instance
    price_per_hour: Decimal | None
    currency: str
    cost: Decimal | None

    @classmethod
    def of(
        cls, instance: Instance, market: Market | None, currency: str, now: float
    ) -> Self:
        """A machine at the price of its market; `currency` counts if that is unknown.
        `now`: UTC seconds.
        """
        price = market.total_per_hour if market else None
        currency = market.currency if market else currency
        cost = None
        if price is not None and instance.launched_at is not None:
            seconds = max(now - instance.launched_at, 0.0)
            cost = price * Decimal(str(seconds)) / 3600
        return cls(instance, price, currency, cost)


@dataclass(frozen=True, slots=True)
class RentedListing:
    """The machines that a cloud had for us `at` that time (UTC seconds)."""

    machines: Sequence[RentedMachine]
    at: float


def reference_of(instance: Instance) -> str:
    """By what an attempt's machine is known to the ledger: `REGION/INSTANCE_ID`."""
    return f"{instance.region}/{instance.id}"


class RentedFleet:
    """The machines of one cloud, by reference."""

    def __init__(
        self, provider: str, api: InstanceApi, installation: Callable[[], str]
    ) -> None:
        self._provider = provider
        self._api = api
        self._installation = installation
        self._reading = SharedCall(self._read)
        self._read_at = float("-inf")
        # When the cloud said what is known (UTC seconds).
        self.told_at = 0.0
        # How often machines were ended.
        self._ends = 0
        self._listed: Mapping[str, Instance] = {}
        # Of those that the cloud may not list yet: with the time of the launch.
        self._launched: dict[str, tuple[Instance, float]] = {}
        # Monotonic seconds.
        self._first_seen: dict[str, float] = {}
        self._told_to_end: dict[str, float] = {}
        self._unneeded_since: dict[str, float] = {}

    # --- what there is ---

    async def read(self, max_age_s: float = 0.0) -> Mapping[str, Instance]:
        """All of them, as the cloud said at most `max_age_s` seconds ago."""
        if time.monotonic() - self._read_at <= max_age_s:
            return self.known
        return await self._reading()

    @property
    def known(self) -> Mapping[str, Instance]:
        """All of them, as the cloud said last."""
        launched = {
            reference: instance for reference, (instance, _) in self._launched.items()
        }
        return {**launched, **self._listed}

    async def _read(self) -> Mapping[str, Instance]:
        ends = self._ends
        found = await self._api.instances(self._installation())
        now = time.monotonic()
        # What was ended meanwhile may still be in the answer.
        self._read_at = now if ends == self._ends else float("-inf")
        self.told_at = time.time()
        self._listed = {reference_of(instance): instance for instance in found}
        for reference, (_, at) in list(self._launched.items()):
            if reference in self._listed or now - at > _LISTED_AFTER_S:
                del self._launched[reference]
        known = self.known
        for times in (self._first_seen, self._told_to_end, self._unneeded_since):
            for reference in times.keys() - known.keys():
                del times[reference]
        for reference in known:
            self._first_seen.setdefault(reference, now)
        return known

    def launched(self, instance: Instance) -> str:
        """Note a machine that was just launched; its reference."""
        reference = reference_of(instance)
        now = time.monotonic()
        self._launched[reference] = instance, now
        self._first_seen.setdefault(reference, now)
        return reference

    def known_s(self, reference: str) -> float:
        """For how many seconds this server has known of the machine."""
        now = time.monotonic()
        return now - self._first_seen.get(reference, now)

    # --- what ends ---

    async def end(self, references: Iterable[str]) -> None:
        """End those of these that may still live, once. ProviderError."""
        known = self.known
        now = time.monotonic()
        due = [
            reference
            for reference in references
            if reference in known
            and known[reference].state.is_live
            and now - self._told_to_end.get(reference, float("-inf")) > _END_AGAIN_S
        ]
        if not due:
            return
        for reference in due:
            self._told_to_end[reference] = now
        try:
            await self._api.end(
                [InstanceRef(known[name].region, known[name].id) for name in due]
            )
        except ProviderError:
            for reference in due:
                self._told_to_end.pop(reference, None)
            raise
        for reference in due:
            self._note_ended(reference)
        # What is ended is asked for anew.
        self._ends += 1
        self._read_at = float("-inf")

    def _note_ended(self, reference: str) -> None:
        """A cloud that forgets a machine at once never lists one that was ended before
        it was listed.
        """
        if reference in self._launched:
            (instance, at) = self._launched[reference]
            ended = replace(instance, state=InstanceState.GONE)
            self._launched[reference] = ended, at

    async def sweep(self, owns: Callable[[str], bool]) -> None:
        """End the machines whose owner does not need them any more. ProviderError."""
        known = await self.read()
        now = time.monotonic()
        unneeded = [
            reference
            for reference, instance in known.items()
            if instance.state.is_live and not owns(instance.owner)
        ]
        for reference in self._unneeded_since.keys() - set(unneeded):
            del self._unneeded_since[reference]
        due = [
            reference
            for reference in unneeded
            if now - self._unneeded_since.setdefault(reference, now) >= _GRACE_S
        ]
        if due:
            log.warning(
                "machines that nobody needs are ended",
                provider=self._provider,
                machines=due,
            )
        await self.end(due)

    @property
    def has_unneeded(self) -> bool:
        """Whether some wait for the end of their grace."""
        return bool(self._unneeded_since)
