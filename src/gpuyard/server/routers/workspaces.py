"""`/api/v1/workspaces`: the folders that outlive jobs, and what they hold."""

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter

from gpuyard.server.dependencies import TheAppState
from gpuyard.storage.place import in_background
from gpuyard.storage.workspaces import listing

router = APIRouter(tags=["workspaces"])


@router.get("/workspaces")
async def list_workspaces(app_state: TheAppState) -> dict[str, Any]:
    """Every workspace with its size, counted anew."""
    found = await in_background(
        listing, app_state.settings.workspaces.root(app_state.home)
    )
    return {
        "items": [{**asdict(one), "path": str(one.path)} for one in found],
        "next": None,
    }
