"""`/api/v1/pools`: nodes that are kept ready at providers."""

import asyncio
from typing import Any

from gpuyard.controller.pool_listing import PoolListing
from gpuyard.server.api_router import api_router
from gpuyard.server.app_state import AppState
from gpuyard.server.dependencies import TheAppState

router = api_router("/pools", tag="machines")


@router.get("")
async def list_pools(app_state: TheAppState) -> dict[str, Any]:
    """Every pool: its nodes by state, how many jobs wait for it, and why it grows or
    does not.

    `cost_per_hour` is that of the machines that run, `cost` that of all it has had, by
    currency; machines without a known price do not count. `problem` says why its
    provider cannot be asked.
    """
    now = app_state.controller.core.clock()
    found = await asyncio.to_thread(_listing(app_state).all, now)
    return {"items": found, "next": None}


@router.get("/{name}")
async def show_pool(app_state: TheAppState, name: str) -> dict[str, Any]:
    """A pool with its newest nodes, also those that have gone: what became of each,
    and why.
    """
    now = app_state.controller.core.clock()
    return await asyncio.to_thread(_listing(app_state).one, name, now)


def _listing(app_state: AppState) -> PoolListing:
    return PoolListing(app_state.controller.pools, app_state.queries)
