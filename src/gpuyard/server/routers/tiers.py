"""`/api/v1/tiers`: the named sizes, in the document's own form."""

from typing import Any

from gpuyard.domain.tiers import Tier
from gpuyard.server.api_router import api_router
from gpuyard.server.dependencies import TheAppState

router = api_router(tag="tiers")


@router.get("/tiers")
async def list_tiers(app_state: TheAppState) -> dict[str, Any]:
    """Every tier, with its price and where the price comes from."""
    return {
        "items": [tier_form(tier) for tier in app_state.controller.core.tiers],
        "next": None,
    }


def tier_form(tier: Tier) -> dict[str, Any]:
    """S4's form: `id, name, description, cpu, memory, gpu?, maxRuntime, costPerHour`,
    and the price's origin.
    """
    memory = (
        f"{tier.memory_gb * 1024:.0f}Mi"
        if tier.memory_gb < 1
        else f"{tier.memory_gb:g}Gi"
    )
    form: dict[str, Any] = {
        "id": tier.id,
        "name": tier.name,
        "description": tier.description,
        "cpu": tier.cpu,
        "memory": memory,
    }
    if tier.gpu_count:
        form["gpu"] = {"count": tier.gpu_count, "memory": f"{tier.gpu_memory_gb:g}Gi"}
    return {
        **form,
        "maxRuntime": tier.max_runtime_s,
        "costPerHour": float(tier.cost_per_hour),
        "currency": tier.currency,
        "instance": tier.instance,
        "source": tier.source,
        "date": tier.date,
    }
