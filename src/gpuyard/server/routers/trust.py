"""`/api/v1/trust`: how far places where jobs run are trusted, and which are in
quarantine.

A place is a provider (`slurm`), an offer (`slurm/gpu`), `node:NAME` or `gpu:UUID`.
"""

from pydantic import BaseModel

from gpuyard.domain.trust import Trust, TrustFinding
from gpuyard.server.api_router import api_router
from gpuyard.server.dependencies import TheAppState

router = api_router("/trust", tag="trust")


class TrustPage(BaseModel):
    """Every place about which something is recorded."""

    items: list[Trust]
    next: str | None = None


@router.get("")
async def list_trust(app_state: TheAppState) -> TrustPage:
    """Every place about which something is recorded, by name."""
    return TrustPage(items=app_state.controller.trust.listing())


@router.get("/{place:path}")
async def show_trust(app_state: TheAppState, place: str) -> Trust:
    """What is recorded about a place."""
    return app_state.controller.trust.find(place)


@router.put("/{place:path}")
async def record_trust(
    app_state: TheAppState, place: str, finding: TrustFinding
) -> Trust:
    """Record this about a place, instead of what was recorded; the place need not exist
    now.

    Until `quarantined_until` (UTC seconds) it gets no new jobs but those with
    `allowed.quarantined`; what runs there, runs on.
    """
    return await app_state.controller.trust.record(place, finding)


@router.delete("/{place:path}")
async def forget_trust(app_state: TheAppState, place: str) -> Trust:
    """Forget what is recorded about a place, a quarantine too; answers with what it
    was.
    """
    return await app_state.controller.trust.forget(place)
