"""`/api/v1/gpus`, `/nodes`, `/providers`: what there is to run on."""

from typing import Any

from fastapi import APIRouter

from gpuyard.domain.gpus import classify
from gpuyard.domain.states import GpuState, gpu_state
from gpuyard.server.yard import TheYard, Yard

router = APIRouter(tags=["machines"])


@router.get("/gpus")
async def list_gpus(yard: TheYard) -> dict[str, Any]:
    """Every GPU: its class, its state and the job it runs."""
    names = {row["id"]: row["name"] for row in yard.queries.nodes()}
    users, figures, loaded = _users(yard), yard.controller.gpus.figures(), yard.controller.models.gpu_states()
    items: list[dict[str, Any]] = []
    for row in yard.queries.gpus():
        user, seen, draining = users.get(row["uuid"]), figures.get(row["uuid"]), bool(row["draining"])
        state = gpu_state(GpuState(row["state"]), loaded.get(row["uuid"]), busy=user is not None, draining=draining)
        items.append({
            **row, "node": names.get(row["node_id"]), "gpu_class": classify(row["name"], row["memory_mb"]),
            "state": state, "draining": draining, "job_id": user,
            "free_mb": seen and seen.free_mb, "temperature_c": seen and seen.temperature_c,
            "utilization": seen and seen.utilization,
        })  # fmt: skip
    return {"items": items, "next": None}


@router.post("/gpus/{gpu}/drain")
async def drain_gpu(yard: TheYard, gpu: str) -> dict[str, Any]:
    """Give this GPU (UUID, its beginning, or index) nothing new; what runs on it runs on."""
    return {"uuid": await yard.controller.gpus.drain(gpu, draining=True)}


@router.post("/gpus/{gpu}/undrain")
async def undrain_gpu(yard: TheYard, gpu: str) -> dict[str, Any]:
    """Use this GPU again."""
    return {"uuid": await yard.controller.gpus.drain(gpu, draining=False)}


@router.post("/gpus/{gpu}/release")
async def release_gpu(yard: TheYard, gpu: str) -> dict[str, Any]:
    """Let this GPU out of quarantine."""
    return {"uuid": await yard.controller.gpus.release(gpu)}


def _users(yard: Yard) -> dict[str, str]:
    """The job on each GPU that is taken."""
    attempts = yard.controller.core.view.attempts.values()
    return {uuid: a.job_id for a in attempts for place in a.placements for uuid in place.gpu_uuids}


@router.get("/nodes")
async def list_nodes(yard: TheYard) -> dict[str, Any]:
    """Every node: capacity, what is booked, whether its agent is connected."""
    items: list[dict[str, Any]] = []
    for row in yard.queries.nodes():
        places = [place for attempt in yard.controller.core.view.attempts_on(row["id"]) for place in attempt.placements
                  if place.node_id == row["id"]]  # fmt: skip
        booked = {
            "cpus": sum(place.cpus for place in places),
            "memory_gb": sum(place.memory_gb for place in places),
            "gpus": sum(len(place.gpu_uuids) for place in places),
        }
        gpus = sum(gpu["node_id"] == row["id"] for gpu in yard.queries.gpus())
        items.append({**row, "gpus": gpus, "booked": booked})
    return {"items": items, "next": None}


@router.get("/providers")
async def list_providers(yard: TheYard) -> dict[str, Any]:
    """The configured providers and their health."""
    items = [{"name": name, **await provider.health_check()} for name, provider in yard.controller.providers.items()]
    return {"items": items, "next": None}
