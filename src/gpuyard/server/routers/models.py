"""`/api/v1/models`: the models that can be resident, where they are loaded, and what
people want of them.
"""

from typing import Any

from fastapi import Request

from gpuyard.server.api_router import api_router
from gpuyard.server.concealing import conceal
from gpuyard.server.dependencies import TheAppState
from gpuyard.server.permissions import visibility_of

router = api_router("/models", tag="models")


@router.get("")
async def list_models(request: Request, app_state: TheAppState) -> dict[str, Any]:
    """Every configured model, its replicas and who waits for it."""
    found = app_state.manager.models.listing()
    visibility = visibility_of(request.scope, app_state.controller)
    return {"items": conceal(app_state.queries, visibility, found), "next": None}


@router.post("/{model:path}/load")
async def load_model(app_state: TheAppState, model: str) -> dict[str, Any]:
    """Load the model where a GPU is free; refused when none is."""
    await app_state.manager.models.load(model)
    return {"name": model}


@router.post("/{model:path}/unload")
async def unload_model(app_state: TheAppState, model: str) -> dict[str, Any]:
    """Unload every replica of the model once it has answered what it is at, and unpin
    it.
    """
    await app_state.manager.models.unload(model)
    return {"name": model}


@router.post("/{model:path}/pin")
async def pin_model(app_state: TheAppState, model: str) -> dict[str, Any]:
    """Load the model and keep it, whatever comes."""
    await app_state.manager.models.pin(model, pinned=True)
    return {"name": model}


@router.post("/{model:path}/unpin")
async def unpin_model(app_state: TheAppState, model: str) -> dict[str, Any]:
    """Let the policy decide about the model again."""
    await app_state.manager.models.pin(model, pinned=False)
    return {"name": model}
