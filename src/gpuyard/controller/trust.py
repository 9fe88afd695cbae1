"""Trust records: scores and quarantines of the places where jobs run. People and
verification write them.
"""

from collections.abc import Collection
from datetime import UTC, datetime

from gpuyard.controller.core import Core
from gpuyard.controller.launching import Launching
from gpuyard.domain.errors import InvalidInputError, NotFoundError
from gpuyard.domain.events import Change, Event, EventKind, Row, Table
from gpuyard.domain.trust import Trust, TrustFinding, check_place


class TrustRecords:
    """Reads and writes the trust records of all places."""

    def __init__(
        self, core: Core, launching: Launching, providers: Collection[str]
    ) -> None:
        """`providers`: the names of the configured providers."""
        self._core = core
        self._launching = launching
        self._providers = providers

    def listing(self) -> list[Trust]:
        """All records, ordered by place."""
        return [Trust.model_validate(row) for row in self._core.queries.trust()]

    def find(self, place: str) -> Trust:
        """The record of the place.

        Raises NotFoundError if there is none, InvalidInputError if `place` names no
        kind of place.
        """
        check_place(place, self._providers)
        found = {trust.place: trust for trust in self.listing()}
        if place not in found:
            places = ", ".join(found) or "nothing"
            raise NotFoundError(
                f"Nothing is recorded about {place!r}.",
                f"There is something about: {places}.",
            )
        return found[place]

    async def record(self, place: str, finding: TrustFinding) -> Trust:
        """Replace the record of the place, which need not exist at present.

        Raises InvalidInputError.
        """
        check_place(place, self._providers)
        now = self._core.clock()
        until = finding.quarantined_until
        if until is not None and until <= now:
            day = datetime.fromtimestamp(until, UTC)
            fault = f"is {until:.0f} ({day:%Y-%m-%d %H:%M:%S} UTC), which is past"
            raise InvalidInputError.of(
                "quarantined_until",
                fault,
                "give a time to come in UTC seconds, or null",
            )
        values = finding.model_dump()
        await self._change(place, {**values, "updated_at": now}, values)
        return Trust(place=place, updated_at=now, **values)

    async def forget(self, place: str) -> Trust:
        """Delete the record of the place, which also ends a quarantine.

        Returns the old record; raises as `find` does.
        """
        before = self.find(place)
        nothing = dict.fromkeys((*TrustFinding.model_fields, "updated_at"))
        await self._change(place, nothing, {"forgotten": True})
        return before

    async def _change(self, place: str, values: Row, info: Row) -> None:
        core = self._core
        change = Change(Table.TRUST, place, values)
        info = {"place": place, **info}
        kind = EventKind.TRUST_CHANGED
        core.emit([Event(kind, core.clock(), (change,), None, info)])
        core.schedule()
        # After this commit, earlier prefetched attempts were sent and can be withdrawn.
        await core.committed()
        self._launching.withdraw_from_quarantine()
