"""`/api/v1/reservations`: GPUs and nodes that projects and users have for a time."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel

from gpuyard.domain.reservations import Reservation, ReservationSpec
from gpuyard.server.dependencies import TheAppState
from gpuyard.server.permissions import identity_of

router = APIRouter(prefix="/reservations", tags=["reservations"])


class ReservationPage(BaseModel):
    """Reservations, the first to begin first."""

    items: list[Reservation]
    next: str | None = None


@router.get("")
async def list_reservations(
    app_state: TheAppState,
    ended: Annotated[bool, Query(description="Those that are over, too.")] = False,
) -> ReservationPage:
    """Every reservation that is to come or holds now, the first to begin first."""
    found = app_state.controller.reservations.listing(ended=ended)
    return ReservationPage(items=found)


@router.get("/{reference}")
async def show_reservation(app_state: TheAppState, reference: str) -> Reservation:
    """One reservation, by its id or a unique ending of that: which GPUs it has."""
    return app_state.controller.reservations.find(reference)


@router.post("", status_code=201)
async def add_reservation(
    app_state: TheAppState, request: Request, spec: ReservationSpec
) -> Reservation:
    """Reserve GPUs or a node for a project or a user.

    One for which there are not enough GPUs beside the others is refused; the answer
    names these, and the next time that is free.
    """
    by = identity_of(request.scope).user
    # Right after its start, a server does not know what there is.
    await app_state.controller.requests.until_node_is_known()
    return await app_state.controller.reservations.add(spec, by)


@router.delete("/{reference}")
async def remove_reservation(app_state: TheAppState, reference: str) -> Reservation:
    """Remove a reservation; answers with what it was. What runs there runs on."""
    return await app_state.controller.reservations.remove(reference)
