"""Calls about reservations; see `calls`."""

from gpuyard.client.answers import items_of
from gpuyard.client.calls import Call, Json
from gpuyard.client.local_timezone import local_timezone
from gpuyard.client.segments import segment
from gpuyard.domain.reservations import Reservation

_PATH = "/api/v1/reservations"
_read = Reservation.model_validate


def add(fields: Json) -> Call[Reservation]:
    """Reserve, in the time zone of this machine unless it is named."""
    body = dict(fields)
    if body.get("timezone") is None:
        body["timezone"] = local_timezone()
    return Call("POST", _PATH, _read, body=body)


def listing(*, ended: bool) -> Call[list[Reservation]]:
    """Those to come and those that hold now; with `ended`, all."""
    params = {"ended": "true"} if ended else {}
    return Call("GET", _PATH, items_of(Reservation), params=params)


def show(reference: str) -> Call[Reservation]:
    """One reservation."""
    return Call("GET", f"{_PATH}/{segment(reference)}", _read)


def remove(reference: str) -> Call[Reservation]:
    """Remove a reservation; what it was."""
    return Call("DELETE", f"{_PATH}/{segment(reference)}", _read)
