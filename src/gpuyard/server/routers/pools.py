"""`/api/v1/pools`: nodes that are kept ready at providers."""

import asyncio
from typing import Annotated, Any

from fastapi import Query

from gpuyard.controller.pool_listing import PoolListing, shown_pool_node
from gpuyard.server.api_router import api_router
from gpuyard.server.app_state import AppState
from gpuyard.server.dependencies import TheAppState

router = api_router("/pools", tag="machines")
_NEWEST = 50


@router.get("")
async def list_pools(app_state: TheAppState) -> dict[str, Any]:
    """Every pool: its nodes by state, how many jobs wait for it, and why it grows or
    does not.

    `cost_per_hour` is that of the machines that run, `cost` that of all it has had, by
    currency; machines without a known price do not count. `problem` says why its
    provider cannot be asked.
    """
    controller = app_state.controller
    found = PoolListing(controller.pools).all(controller.core.clock())
    return {"items": found, "next": None}


@router.get("/{name}")
async def show_pool(app_state: TheAppState, name: str) -> dict[str, Any]:
    """A pool with its newest nodes, also those that have gone: what became of each,
    and why. `nodes` below it has all of them.
    """
    pool = _find(app_state, name)
    return {**pool, "newest_nodes": await _nodes(app_state, name, _NEWEST, None)}


@router.get("/{name}/nodes")
async def list_pool_nodes(
    app_state: TheAppState,
    name: str,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
    cursor: Annotated[
        str | None, Query(description="The `next` of the page before.")
    ] = None,
) -> dict[str, Any]:
    """All nodes that a pool has had, the newest first."""
    _find(app_state, name)
    items = await _nodes(app_state, name, limit, cursor)
    after = items[-1]["id"] if len(items) == limit else None
    return {"items": items, "next": after}


def _find(app_state: AppState, name: str) -> dict[str, Any]:
    controller = app_state.controller
    return PoolListing(controller.pools).one(name, controller.core.clock())


async def _nodes(
    app_state: AppState, name: str, limit: int, before: str | None
) -> list[dict[str, Any]]:
    read = app_state.queries.pool_nodes
    rows = await asyncio.to_thread(read, name, limit, before)
    now = app_state.controller.core.clock()
    return [shown_pool_node(row, now) for row in rows]
