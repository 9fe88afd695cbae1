"""GPUs under a reservation that nobody uses, neither its holder nor those to whom they
are lent: keeps for how long, for reports of costs.

It looks every few seconds, because what is used for less than that matters to nobody.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from gpuyard.billing.meter import cost
from gpuyard.controller.core import Core
from gpuyard.domain.errors import LedgerError
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.domain.ids import new_id
from gpuyard.domain.shape import Shape
from gpuyard.scheduler.advance import AdvanceReservation

LOOK_AGAIN_S = 5.0
Place = tuple[str, str]
"""The id of a reservation, and one of its GPUs by its UUID."""

Holder = tuple[str, str | None]
"""The id of a reservation, and its project, if it is of one."""


@dataclass(frozen=True, slots=True)
class _Unused:
    """A GPU that nobody has used since `since_s` of the monotonic clock; None: since
    before this server began.
    """

    row: dict[str, Any]
    since_s: float | None


class UnusedGpus:
    """Keeps the times in which reserved GPUs are unused, as an extension of the
    controller.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._unused: dict[Place, _Unused] = {}
        self._alarm: asyncio.TimerHandle | None = None

    # --- the extension ---

    def start(self) -> None:
        """Read what was unused when the last server ended: nobody can have begun to use
        it since.
        """
        self.reload()

    def reload(self) -> None:
        """Read it again."""
        rows = self._core.queries.unused_gpus()
        self._unused = {
            (row["reservation"], row["uuid"]): _Unused(dict(row), None) for row in rows
        }

    def before_deciding(self) -> None:
        """Begin to look, if there are reservations."""
        if self._alarm is None and self._has_something():
            self._set_alarm()

    @property
    def idle(self) -> bool:
        """Always: a server that starts later goes on."""
        return True

    async def close(self) -> None:
        """Look no more."""
        if self._alarm:
            self._alarm.cancel()

    # --- looking ---

    def _has_something(self) -> bool:
        return bool(self._core.view.advance.coming or self._unused)

    def _set_alarm(self) -> None:
        loop = asyncio.get_running_loop()
        self._alarm = loop.call_later(LOOK_AGAIN_S, self._look_soon)

    def _look_soon(self) -> None:
        self._core.spawn(self._look_and_wait(), "unused GPUs")

    async def _look_and_wait(self) -> None:
        try:
            self.look()
            await self._core.committed(own_only=True)
        except LedgerError:
            pass  # memory was read again
        finally:
            self._alarm = None  # after a fault, the next decision sets it
        self.before_deciding()

    def look(self) -> None:
        """Note which reserved GPUs are unused now, and which not any more."""
        now = self._core.clock()
        unused = {
            (booked.id, uuid): (booked, node_id)
            for booked in self._core.view.advance.by_id.values()
            if booked.begins_at <= now < booked.ends_at
            for node_id, uuid in self._unused_of(booked)
        }
        changes: dict[Holder, list[Change]] = {}
        for place in [each for each in self._unused if each not in unused]:
            holder = (place[0], self._unused[place].row["project"])
            changes.setdefault(holder, []).append(self._ended(place, now))
        for place, (booked, node_id) in unused.items():
            if place not in self._unused:
                holder = (booked.id, booked.project)
                began = self._began(place, booked, node_id, now)
                changes.setdefault(holder, []).append(began)
        events = [self._event(holder, each, now) for holder, each in changes.items()]
        self._core.emit(events, can_wait=True)

    def _unused_of(self, booked: AdvanceReservation) -> Iterator[tuple[str, str]]:
        """Its GPUs that nothing has booked, each with its node."""
        for node_id, share in booked.shares.items():
            used = {
                uuid
                for booking in self._core.view.node(node_id).bookings.values()
                for uuid in booking.gpu_uuids
            }
            yield from ((node_id, uuid) for uuid in share.gpu_uuids if uuid not in used)

    def _began(
        self, place: Place, booked: AdvanceReservation, node_id: str, now: float
    ) -> Change:
        view = self._core.view
        (reservation, uuid) = place
        device = view.devices[uuid]
        shape = Shape(gpus=1, gpu_memory_gb=device.memory_gb)
        price = self._core.list_price_of(shape)
        row: dict[str, Any] = {
            "reservation": reservation,
            "project": booked.project,
            "owner": booked.user,
            "provider": view.node(node_id).provider,
            "uuid": uuid,
            "gpu": device.gpu_class or device.name,
            "tier": price.tier,
            "price_per_hour": str(price.per_hour),
            "currency": price.currency,
            "began_at": now,
            "reserved_until": booked.ends_at,
            "ran_s": None,
            "cost": None,
        }
        unused_id = new_id("unused")
        since_s = asyncio.get_running_loop().time()
        self._unused[place] = _Unused({"id": unused_id, **row}, since_s)
        return Change(Table.UNUSED_GPUS, unused_id, row)

    def _ended(self, place: Place, now: float) -> Change:
        found = self._unused.pop(place)
        row = found.row
        unused_s = now - row["began_at"]
        if found.since_s is not None:
            unused_s = asyncio.get_running_loop().time() - found.since_s
        until_end_s = row["reserved_until"] - row["began_at"]
        unused_s = max(min(unused_s, until_end_s), 0.0)
        worth = str(cost(Decimal(row["price_per_hour"]), unused_s))
        return Change(Table.UNUSED_GPUS, row["id"], {"ran_s": unused_s, "cost": worth})

    def _event(self, holder: Holder, changes: list[Change], now: float) -> Event:
        (reservation, project) = holder
        info = {
            "reservation": reservation,
            "project": project,
            "gpus_unused": sum(place[0] == reservation for place in self._unused),
        }
        return Event(EventKind.RESERVATION_UNUSED, now, tuple(changes), None, info)
