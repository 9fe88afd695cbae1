"""`/api/v1/machines`: the machines that providers rent, and what they cost."""

from typing import Any

from fastapi import Request

from gpuyard.server.api_router import api_router
from gpuyard.server.concealing import conceal
from gpuyard.server.dependencies import TheAppState
from gpuyard.server.permissions import visibility_of

router = api_router("/machines", tag="machines")


@router.get("")
async def list_rented_machines(
    request: Request, app_state: TheAppState
) -> dict[str, Any]:
    """The machines that clouds have for this instance. They are tagged with the id of
    the instance, so none of them is left out, whatever this server remembers.

    Each cloud is asked every ten seconds at most, however many people look, and at once
    after the end of a machine. `told_at` says of each provider when it gave its newest
    answer (UTC seconds; null: it has given none), and `problems` by the names of those
    that give no newer one, why. What they said last stays in the list.
    `pool` is the pool whose node it is. A machine of neither a job (`job_id`) nor a
    pool is ended within a minute, but not while output of its job is fetched.
    `cost` is that since its launch, null if its price is not known.
    """
    found = await app_state.controller.rented_nodes.machines()
    pool_of = app_state.controller.pools.pool_of_owner
    items = [{**item, "pool": pool_of(item["owner"])} for item in found["items"]]
    visibility = visibility_of(request.scope, app_state.controller)
    return {
        **found,
        "items": [conceal(app_state.queries, visibility, one) for one in items],
        "next": None,
    }
