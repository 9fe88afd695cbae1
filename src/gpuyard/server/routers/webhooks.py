"""`/api/v1/webhooks`: how far each webhook is, and what its receiver did not take."""

from typing import Any

from fastapi import Request

from gpuyard.controller.visibility import Visibility
from gpuyard.server.api_router import api_router
from gpuyard.server.app_state import AppState
from gpuyard.server.dependencies import TheAppState
from gpuyard.server.permissions import visibility_of
from gpuyard.server.stream import message_of

router = api_router("/webhooks", tag="webhooks")


@router.get("")
async def list_webhooks(request: Request, app_state: TheAppState) -> dict[str, Any]:
    """Each configured webhook: its place in the journal, whether its last delivery
    failed, and the events that were put aside (`dead_letters`).
    """
    notifier = app_state.notifier
    items = notifier.describe() if notifier else []
    visibility = visibility_of(request.scope, app_state.controller)
    return {
        "items": [_seen(app_state, visibility, item) for item in items],
        "next": None,
    }


def _seen(
    app_state: AppState, visibility: Visibility, item: dict[str, Any]
) -> dict[str, Any]:
    """A webhook without the events that do not exist for who asks."""
    if visibility.of_all_users:
        return item
    letters = item["dead_letters"]
    latest = [
        letter
        for letter in letters["latest"]
        if (row := app_state.queries.event(letter["seq"]))
        and app_state.event_visibility.seen([message_of(row)], visibility)
    ]
    count = letters["count"] - len(letters["latest"]) + len(latest)
    return {**item, "dead_letters": {"count": count, "latest": latest}}
