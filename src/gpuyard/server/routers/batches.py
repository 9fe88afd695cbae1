"""`/api/v1/batches`: one script over many items; `/api/v1/estimate/batch`: how long
that would take.
"""

from typing import Annotated, Any

from fastapi import Body, Request
from pydantic import BaseModel, BeforeValidator, ConfigDict

from gpuyard.domain.batches import BatchMode, BatchSpec
from gpuyard.domain.spec_values import Name
from gpuyard.server.api_router import api_router
from gpuyard.server.app_state import AppState
from gpuyard.server.callers import submitter_of
from gpuyard.server.dependencies import TheAppState
from gpuyard.server.permissions import check_own, rights_of, visibility_of
from gpuyard.server.worker_tokens import CLAIM_KEY, WorkerClaim

router = api_router("/batches", tag="batches")
estimates = api_router("/estimate", tag="batches")

_LONGEST_FAULT = 10_000


def _clipped(text: object) -> object:
    """A script says how it failed in as many words as it likes."""
    return text[:_LONGEST_FAULT] if isinstance(text, str) else text


Fault = Annotated[str, BeforeValidator(_clipped)]


class ItemOutcome(BaseModel):
    """How an item went, at which of its attempts: `fault` says why it was not done,
    `crashed` that the script's process is gone.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    number: int
    attempts: int = 1
    fault: Fault | None = None
    crashed: bool = False


class Take(BaseModel):
    """A worker's word: who it is, how its last item went, or why its script cannot be
    loaded.
    """

    model_config = ConfigDict(extra="forbid")

    attempt_id: Name
    done: ItemOutcome | None = None
    fault: Fault | None = None


class Again(BaseModel):
    """How to do items again."""

    model_config = ConfigDict(extra="forbid")

    mode: BatchMode | None = None


@router.post("", status_code=201)
async def submit_batch(
    request: Request, app_state: TheAppState, batch: BatchSpec
) -> dict[str, Any]:
    """Queue a batch. A repeated idempotency key is the first batch again."""
    user = submitter_of(request.scope)
    rights = rights_of(request.scope, app_state.controller)
    return await app_state.manager.batches.submit(batch, user, rights)


@estimates.post("/batch")
async def estimate_batch(app_state: TheAppState, batch: BatchSpec) -> dict[str, Any]:
    """What a batch would take from now on, and which GPU would do what; nothing is
    queued.
    """
    return app_state.manager.batches.estimates.estimate(batch)


@router.get("")
async def list_batches(request: Request, app_state: TheAppState) -> dict[str, Any]:
    """Every batch, the newest first."""
    visibility = visibility_of(request.scope, app_state.controller)
    found = app_state.manager.batches.listing()
    items = [batch for batch in found if visibility.sees(batch["project"])]
    return {"items": items, "next": None}


@router.get("/{batch_id}")
async def show_batch(
    request: Request, app_state: TheAppState, batch_id: str, items: bool = True
) -> dict[str, Any]:
    """One batch, with its items or without."""
    _check_seen(request, app_state, batch_id)
    found = app_state.manager.batches
    return found.show(batch_id) if items else found.summary(batch_id)


@router.post("/{batch_id}/take")
async def take_item(
    request: Request, app_state: TheAppState, batch_id: str, take: Take
) -> dict[str, Any]:
    """For workers: say how the last item went and take the next; none means to
    leave.
    """
    claim: WorkerClaim | None = request.scope.get(CLAIM_KEY)
    if claim:
        claim.check_attempt(take.attempt_id)
    done = take.done.model_dump() if take.done else None
    return {
        "item": await app_state.manager.batches.take(
            batch_id, take.attempt_id, done, take.fault
        )
    }


def _check_seen(request: Request, app_state: AppState, batch_id: str) -> None:
    """NotFoundError if there is no such batch, or none for who asks."""
    visibility = visibility_of(request.scope, app_state.controller)
    app_state.manager.batches.check_seen(batch_id, visibility)


async def _check_own(
    request: Request, app_state: AppState, batch_id: str, *, starts: bool = False
) -> None:
    """ForbiddenError if who asks may not change this batch; NotFoundError. `starts`:
    items of it are to start again.
    """
    _check_seen(request, app_state, batch_id)
    await check_own(request.scope, app_state.controller, [batch_id], starts=starts)


@router.post("/{batch_id}/cancel")
async def cancel_batch(
    request: Request, app_state: TheAppState, batch_id: str
) -> dict[str, Any]:
    """End a batch; models that made room for it come back."""
    await _check_own(request, app_state, batch_id)
    return await app_state.manager.batches.cancel(batch_id)


@router.post("/{batch_id}/retry")
async def retry_batch(
    request: Request,
    app_state: TheAppState,
    batch_id: str,
    again: Annotated[Again | None, Body()] = None,
) -> dict[str, Any]:
    """Do the items again that failed or were cancelled."""
    await _check_own(request, app_state, batch_id, starts=True)
    return await app_state.manager.batches.retry(
        batch_id, again.mode if again else None
    )
