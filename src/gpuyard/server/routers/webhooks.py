"""`/api/v1/webhooks`: how far each webhook is, and what its receiver did not take."""

from typing import Any

from fastapi import APIRouter

from gpuyard.server.dependencies import TheAppState

router = APIRouter(prefix="/webhooks", tags=["webhooks"])


@router.get("")
async def list_webhooks(app_state: TheAppState) -> dict[str, Any]:
    """Each configured webhook: its place in the journal, whether its last delivery
    failed, and the events that were put aside (`dead_letters`).
    """
    notifier = app_state.notifier
    return {"items": notifier.describe() if notifier else [], "next": None}
