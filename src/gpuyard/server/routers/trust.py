"""`/api/v1/trust`: how far places where jobs run are trusted, and which are in quarantine.

A place is a provider (`slurm`), an offer (`slurm/gpu`), `node:NAME` or `gpu:UUID`.
"""

from fastapi import APIRouter
from pydantic import BaseModel

from gpuyard.domain.trust import Trust, TrustFinding
from gpuyard.server.yard import TheYard

router = APIRouter(prefix="/trust", tags=["trust"])


class TrustPage(BaseModel):
    """Every place about which something is recorded."""

    items: list[Trust]
    next: str | None = None


@router.get("")
async def list_trust(yard: TheYard) -> TrustPage:
    """Every place about which something is recorded, by name."""
    return TrustPage(items=yard.controller.trust.listing())


@router.get("/{place:path}")
async def show_trust(yard: TheYard, place: str) -> Trust:
    """What is recorded about a place."""
    return yard.controller.trust.find(place)


@router.put("/{place:path}")
async def record_trust(yard: TheYard, place: str, finding: TrustFinding) -> Trust:
    """Record this about a place, instead of what was recorded; the place need not exist now.

    Until `quarantined_until` (UTC seconds) it gets no new jobs but those with `allowed.quarantined`; what runs there,
    runs on.
    """
    return await yard.controller.trust.record(place, finding)


@router.delete("/{place:path}")
async def forget_trust(yard: TheYard, place: str) -> Trust:
    """Forget what is recorded about a place, a quarantine too; answers with what it was."""
    return await yard.controller.trust.forget(place)
