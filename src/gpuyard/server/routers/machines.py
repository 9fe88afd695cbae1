"""`/api/v1/gpus`, `/nodes`, `/queues`, `/providers`, `/offers`: what there is to run
on.
"""

from collections import Counter
from dataclasses import asdict
from typing import Any

from fastapi import Request

from gpuyard.controller.core import Core
from gpuyard.controller.joined_nodes import REMOVED
from gpuyard.domain.gpus import classify
from gpuyard.domain.offers import Offer
from gpuyard.domain.shape import Shape
from gpuyard.resource_manager.gpu_work import Work
from gpuyard.server.api_router import api_router
from gpuyard.server.app_state import AppState
from gpuyard.server.concealing import conceal, hidden_jobs_of
from gpuyard.server.dependencies import TheAppState
from gpuyard.server.permissions import visibility_of

router = api_router(tag="machines")


@router.get("/gpus")
async def list_gpus(request: Request, app_state: TheAppState) -> dict[str, Any]:
    """Every GPU: its class, its state, and the model or script on it.

    `warnings` says that it is hot, its memory nearly full, or that its power limit
    slows it down. A server that has just started waits for its first node.
    """
    await app_state.controller.requests.until_node_is_known()
    names = {row["id"]: row["name"] for row in app_state.queries.nodes()}
    figures = app_state.controller.gpus.figures()
    separations = app_state.controller.gpus.separations()
    work = _seen_work(request, app_state)
    view = app_state.controller.core.view
    quarantines = {
        uuid: app_state.manager.gpu_work.quarantine(device)
        for uuid, device in view.devices.items()
    }
    items: list[dict[str, Any]] = []
    for row in app_state.queries.gpus():
        seen = figures.get(row["uuid"])
        at = work.get(row["uuid"], {"job_id": None})
        items.append(
            {
                **row,
                "node": names.get(row["node_id"]),
                "gpu_class": classify(row["name"], row["memory_mb"]),
                "draining": bool(row["draining"]),
                "free_mb": seen and seen.free_mb,
                "temperature_c": seen and seen.temperature_c,
                "utilization": seen and seen.utilization,
                "quarantine": quarantines.get(row["uuid"]) or None,
                "separation": separations.get(row["node_id"]),
                "warnings": app_state.controller.gpu_alarms.of(row["uuid"]),
                **at,
            }
        )
    return {"items": items, "next": None}


def _seen_work(request: Request, app_state: AppState) -> dict[str, Work]:
    """What each GPU does; of a job that does not exist for who asks, only that
    something runs there.
    """
    work = app_state.manager.gpu_work.all()
    visibility = visibility_of(request.scope, app_state.controller)
    job_ids = {at["job_id"] for at in work.values() if at["job_id"]}
    hidden = hidden_jobs_of(app_state.queries, visibility, job_ids)
    return {
        uuid: {"state": at["state"], "job_id": None} if at["job_id"] in hidden else at
        for uuid, at in work.items()
    }


@router.post("/gpus/{gpu}/drain")
async def drain_gpu(app_state: TheAppState, gpu: str) -> dict[str, Any]:
    """Give this GPU (UUID, its beginning, or index) nothing new; what runs on it runs
    on.
    """
    return {"uuid": await app_state.controller.gpus.drain(gpu, draining=True)}


@router.post("/gpus/{gpu}/undrain")
async def undrain_gpu(app_state: TheAppState, gpu: str) -> dict[str, Any]:
    """Use this GPU again."""
    return {"uuid": await app_state.controller.gpus.drain(gpu, draining=False)}


@router.post("/gpus/{gpu}/release")
async def release_gpu(app_state: TheAppState, gpu: str) -> dict[str, Any]:
    """Let this GPU out of quarantine."""
    return {"uuid": await app_state.controller.gpus.release(gpu)}


@router.get("/nodes")
async def list_nodes(request: Request, app_state: TheAppState) -> dict[str, Any]:
    """Every node: capacity, what is booked, whether its agent is connected.

    `joined`: it is another machine that has joined, `pool` the pool that it is of;
    `cordoned`: it gets no new jobs.
    `separation` says what keeps its jobs apart: `agreement`, `accounts` or `accounts
    and devices`; null while its agent is not connected. `disk` is that of its home:
    its `problem` says when it is nearly full, and which job takes most. A server that
    has just started waits some seconds for its first node.
    """
    await app_state.controller.requests.until_node_is_known()
    queries = app_state.queries
    controller = app_state.controller
    separations = controller.gpus.separations()
    visibility = visibility_of(request.scope, controller)
    gpu_counts = Counter(gpu["node_id"] for gpu in queries.gpus())
    items: list[dict[str, Any]] = []
    for stored in queries.nodes():
        if stored["state"] == REMOVED:
            continue
        row = {name: stored[name] for name in stored if name != "certificate"}
        node_id = row["id"]
        barred = controller.core.view.node(node_id).barred.get(row["provider"])
        disk = controller.disks.of(node_id)
        items.append(
            {
                **row,
                "cordoned": bool(row["cordoned"]),
                "joined": bool(stored["certificate"]),
                "pool": controller.pools.pool_of(node_id),
                "gpus": gpu_counts[node_id],
                "booked": _booked_on(node_id, controller.core),
                "quarantine": barred,
                "separation": separations.get(node_id),
                "disk": conceal(queries, visibility, disk),
            }
        )
    return {"items": items, "next": None}


def _booked_on(node_id: str, core: Core) -> dict[str, float]:
    """What the live attempts have of a node."""
    placements = [
        placement
        for attempt in core.view.attempts_on(node_id)
        for placement in attempt.placements
        if placement.node_id == node_id
    ]
    return {
        "cpus": sum(placement.cpus for placement in placements),
        "memory_gb": sum(placement.memory_gb for placement in placements),
        "gpus": sum(len(placement.gpu_uuids) for placement in placements),
    }


@router.get("/queues")
async def list_queues(app_state: TheAppState) -> dict[str, Any]:
    """How many prompts wait for a model, and how many scripts for a GPU."""
    waiting = app_state.manager.waiting()
    return {
        "items": [{"name": name, "waiting": count} for name, count in waiting.items()],
        "next": None,
    }


@router.get("/providers")
async def list_providers(app_state: TheAppState) -> dict[str, Any]:
    """The configured providers, their health, and how many attempts wait and run
    there. `rents` says whether it rents machines from a cloud.
    """
    found = await app_state.controller.external_queues.listing()
    rented = app_state.controller.providers.rented
    items = [{**provider, "rents": provider["name"] in rented} for provider in found]
    return {"items": items, "next": None}


@router.get("/offers")
async def list_offers(app_state: TheAppState) -> dict[str, Any]:
    """What providers offer, the best first: GPUs, sizes, prices, and why one cannot be
    had at the moment.

    `wait_s` is what a job waits there: as seen here, else as the provider says.
    `failed` and `interrupted` are the parts of attempts that went so, as far as is
    known; `trust` is its score, null if nobody checks it. `problems` says of each
    external queue that cannot be used or does not answer, by its name, why.
    """
    core = app_state.controller.core
    return {
        "items": [
            _offer(core, offer)
            for offer in core.view.external_queues.listing(core.policy.strategy)
        ],
        "next": None,
        "problems": {
            queue.name: queue.problem
            for queue in core.view.external_queues.by_name.values()
            if queue.problem
        },
    }


def _offer(core: Core, offer: Offer) -> dict[str, Any]:
    queues = core.view.external_queues
    risk = queues.history.risk(offer.id, spot=offer.spot)
    return {
        **{name: getattr(offer, name) for name in _SHOWN},
        "price_per_hour": offer.price_per_hour and str(offer.price_per_hour),
        "price_parts": [asdict(one) for one in offer.parts],
        "gpu_memory_gb": offer.gpu_gb,
        "problem": queues.obstacle(offer, Shape(), core.clock()) or None,
        "trust": queues.trust.score(offer),
        "wait_s": offer.wait_s if risk.wait_s is None else risk.wait_s,
        "failed": round(risk.failed, 4),
        "interrupted": round(risk.interrupted, 4),
    }


_SHOWN = (
    "id",
    "provider",
    "gpu",
    "gpus",
    "gpu_capability",
    "cpus",
    "memory_gb",
    "nodes",
    "region",
    "spot",
    "containers",
    "processes",
    "currency",
    "price_source",
    "billed",
    "divisible",
)
