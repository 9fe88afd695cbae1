"""`/api/v1/models`: the models that can be resident, where they are loaded, and what people want of them."""

from typing import Any

from fastapi import APIRouter

from gpuyard.server.yard import TheYard

router = APIRouter(prefix="/models", tags=["models"])


@router.get("")
async def list_models(yard: TheYard) -> dict[str, Any]:
    """Every configured model, its replicas and who waits for it."""
    return {"items": yard.controller.models.listing(), "next": None}


@router.post("/{model:path}/load")
async def load_model(yard: TheYard, model: str) -> dict[str, Any]:
    """Load the model where a GPU is free; refused when none is."""
    await yard.controller.models.load(model)
    return {"name": model}


@router.post("/{model:path}/unload")
async def unload_model(yard: TheYard, model: str) -> dict[str, Any]:
    """Unload every replica of the model once it has answered what it is at, and unpin it."""
    await yard.controller.models.unload(model)
    return {"name": model}


@router.post("/{model:path}/pin")
async def pin_model(yard: TheYard, model: str) -> dict[str, Any]:
    """Load the model and keep it, whatever comes."""
    await yard.controller.models.pin(model, pinned=True)
    return {"name": model}


@router.post("/{model:path}/unpin")
async def unpin_model(yard: TheYard, model: str) -> dict[str, Any]:
    """Let the policy decide about the model again."""
    await yard.controller.models.pin(model, pinned=False)
    return {"name": model}
