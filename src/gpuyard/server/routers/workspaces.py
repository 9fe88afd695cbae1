"""`/api/v1/workspaces`: the folders that outlive jobs, and what they hold."""

from dataclasses import asdict
from typing import Any

from fastapi import Request

from gpuyard.server.api_router import api_router
from gpuyard.server.dependencies import TheAppState
from gpuyard.server.permissions import visibility_of
from gpuyard.storage.place import in_background

router = api_router(tag="workspaces")


@router.get("/workspaces")
async def list_workspaces(request: Request, app_state: TheAppState) -> dict[str, Any]:
    """Every workspace with its size, counted anew; when it was used last, and when it
    is removed if nobody uses it. `quota`: of all workspaces of its project, in bytes.
    """
    visibility = visibility_of(request.scope, app_state.controller)
    found = await app_state.controller.workspaces.listing()
    seen = [one for one in found if visibility.sees(one.project)]
    uses = await in_background(app_state.controller.workspaces.shown, seen)
    items = [
        {**asdict(one), "path": str(one.path), **use}
        for one, use in zip(seen, uses, strict=True)
    ]
    return {"items": items, "next": None}
