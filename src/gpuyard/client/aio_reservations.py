"""The methods of `AsyncClient` for reservations."""

from typing import Any, TypeVar

from gpuyard.client import reservation_calls
from gpuyard.client.calls import Call
from gpuyard.domain.reservations import Reservation

T = TypeVar("T")


class AsyncReservationMethods:
    """GPUs and nodes that projects and users have for a time."""

    async def call(self, call: Call[T]) -> T:
        """Carry one call."""
        raise NotImplementedError

    async def reserve(self, begins: str, ends: str, **fields: Any) -> Reservation:
        """Reserve `gpus` (of a `gpu_class`, on a `node`) or a whole `node` for a
        `project` or a `user`. Times are local, such as `2026-12-01 09:00`, in
        `timezone`, by default that of this machine. RefusedError if it conflicts.
        """
        return await self.call(
            reservation_calls.add({"begins": begins, "ends": ends, **fields})
        )

    async def reservations(self, *, ended: bool = False) -> list[Reservation]:
        """Those to come and those that hold now; with `ended`, all."""
        return await self.call(reservation_calls.listing(ended=ended))

    async def reservation(self, reference: str) -> Reservation:
        """One by its id or an ending of that; NotFoundError."""
        return await self.call(reservation_calls.show(reference))

    async def remove_reservation(self, reference: str) -> Reservation:
        """Remove one; what it was."""
        return await self.call(reservation_calls.remove(reference))
