"""`/api/v1/workspaces`: the folders that outlive jobs, and what they hold."""

from dataclasses import asdict
from typing import Any

from fastapi import Request

from gpuyard.server.api_router import api_router
from gpuyard.server.dependencies import TheAppState
from gpuyard.server.permissions import visibility_of
from gpuyard.storage.place import in_background
from gpuyard.storage.workspaces import listing

router = api_router(tag="workspaces")


@router.get("/workspaces")
async def list_workspaces(request: Request, app_state: TheAppState) -> dict[str, Any]:
    """Every workspace with its size, counted anew."""
    visibility = visibility_of(request.scope, app_state.controller)
    found = await in_background(
        listing, app_state.settings.workspaces.root(app_state.home)
    )
    return {
        "items": [
            {**asdict(one), "path": str(one.path)}
            for one in found
            if visibility.sees(one.project)
        ],
        "next": None,
    }
