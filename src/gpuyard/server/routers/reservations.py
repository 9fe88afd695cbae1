"""`/api/v1/reservations`: GPUs and nodes that projects and users have for a time."""

from typing import Annotated

from fastapi import Query, Request
from pydantic import BaseModel

from gpuyard.controller.projects import unknown_project
from gpuyard.domain.cost_keys import INSTANCE_OWNER
from gpuyard.domain.errors import RefusedError
from gpuyard.domain.reservations import Reservation, ReservationSpec
from gpuyard.server.api_router import api_router
from gpuyard.server.concealing import conceal, conceal_holder
from gpuyard.server.dependencies import TheAppState
from gpuyard.server.permissions import identity_of, visibility_of

router = api_router("/reservations", tag="reservations")


class ReservationPage(BaseModel):
    """Reservations, the first to begin first."""

    items: list[Reservation]
    next: str | None = None


@router.get("")
async def list_reservations(
    request: Request,
    app_state: TheAppState,
    ended: Annotated[bool, Query(description="Those that are over, too.")] = False,
) -> ReservationPage:
    """Every reservation that is to come or holds now, the first to begin first. One of
    a private project of which you are no member is that of `others`.
    """
    visibility = visibility_of(request.scope, app_state.controller)
    found = app_state.controller.reservations.listing(ended=ended)
    queries = app_state.queries
    items = [conceal_holder(queries, visibility, one) for one in found]
    return ReservationPage(items=items)


@router.get("/{reference}")
async def show_reservation(
    request: Request, app_state: TheAppState, reference: str
) -> Reservation:
    """One reservation, by its id or a unique ending of that: which GPUs it has."""
    visibility = visibility_of(request.scope, app_state.controller)
    found = app_state.controller.reservations.find(reference)
    return conceal_holder(app_state.queries, visibility, found)


@router.post("", status_code=201)
async def add_reservation(
    app_state: TheAppState, request: Request, spec: ReservationSpec
) -> Reservation:
    """Reserve GPUs or a node for a project or a user.

    One for which there are not enough GPUs beside the others is refused; the answer
    names these, and the next time that is free.
    """
    by = identity_of(request.scope).user
    visibility = visibility_of(request.scope, app_state.controller)
    if spec.project is not None and not visibility.sees(spec.project):
        raise unknown_project(spec.project)
    if spec.user not in (None, INSTANCE_OWNER):
        app_state.controller.users.refuse_unknown(spec.user)
    # Right after its start, a server does not know what there is.
    await app_state.controller.requests.until_node_is_known()
    try:
        return await app_state.controller.reservations.add(spec, by)
    except RefusedError as error:
        told = (error.message, error.remedy)
        raise RefusedError(*conceal(app_state.queries, visibility, told)) from None


@router.delete("/{reference}")
async def remove_reservation(
    request: Request, app_state: TheAppState, reference: str
) -> Reservation:
    """Remove a reservation; answers with what it was. What runs there runs on."""
    visibility = visibility_of(request.scope, app_state.controller)
    removed = await app_state.controller.reservations.remove(reference)
    return conceal_holder(app_state.queries, visibility, removed)
