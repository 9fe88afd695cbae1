"""What is recorded about places where jobs run: scores and quarantines, by people and by whoever checks them."""

from collections.abc import Collection
from datetime import UTC, datetime

from gpuyard.controller.core import Core
from gpuyard.controller.launching import Launching
from gpuyard.domain.errors import InvalidInputError, NotFoundError
from gpuyard.domain.events import Change, Event, EventKind, Row, Table
from gpuyard.domain.trust import Trust, TrustFinding, check_place


class TrustRecords:
    """Every place about which something is recorded."""

    def __init__(self, core: Core, launching: Launching, providers: Collection[str]) -> None:
        """`providers`: the names of those configured."""
        self._core = core
        self._launching = launching
        self._providers = providers

    def listing(self) -> list[Trust]:
        """All that is recorded, by place."""
        return [Trust.model_validate(row) for row in self._core.queries.trust()]

    def find(self, place: str) -> Trust:
        """What is recorded about the place; NotFoundError when nothing is, InvalidInputError when it is no place."""
        check_place(place, self._providers)
        found = {trust.place: trust for trust in self.listing()}
        if place not in found:
            known = ", ".join(found) or "nothing"
            raise NotFoundError(f"Nothing is recorded about {place!r}.", f"There is something about: {known}.")
        return found[place]

    async def record(self, place: str, finding: TrustFinding) -> Trust:
        """Record this instead of what was recorded about the place, which need not exist now; InvalidInputError."""
        check_place(place, self._providers)
        now, until = self._core.clock(), finding.quarantined_until
        if until is not None and until <= now:
            fault = f"is {until:.0f} ({datetime.fromtimestamp(until, UTC):%Y-%m-%d %H:%M:%S} UTC), which is past"
            raise InvalidInputError.of("quarantined_until", fault, "give a time to come in UTC seconds, or null")
        await self._change(place, {**finding.model_dump(), "updated_at": now}, finding.model_dump())
        return Trust(place=place, updated_at=now, **finding.model_dump())

    async def forget(self, place: str) -> Trust:
        """Forget what is recorded about the place, a quarantine too; it as it was. As `find` for errors."""
        before = self.find(place)
        nothing = dict.fromkeys((*TrustFinding.model_fields, "updated_at"))
        await self._change(place, nothing, {"forgotten": True})
        return before

    async def _change(self, place: str, values: Row, info: Row) -> None:
        core = self._core
        change = Change(Table.TRUST, place, values)
        core.emit([Event(EventKind.TRUST_CHANGED, core.clock(), (change,), None, {"place": place, **info})])
        core.schedule()
        await core.committed()  # what was intended before is on its way by then, and can be had back
        self._launching.heed_quarantines()
