"""`/api/v1/throughput`: how many jobs have ended over time."""

import asyncio

from fastapi import Request

from gpuyard.domain.throughput import Throughput, ThroughputStep
from gpuyard.server.api_router import api_router
from gpuyard.server.dependencies import TheAppState
from gpuyard.server.permissions import visibility_of

router = api_router("/throughput", tag="jobs")


@router.get("")
async def show_throughput(
    request: Request, app_state: TheAppState, by: ThroughputStep = ThroughputStep.MINUTE
) -> Throughput:
    """How many jobs ended in each of the last 60 minutes or 24 hours, by outcome, as
    far back as the journal goes.
    """
    hidden = visibility_of(request.scope, app_state.controller).hidden
    now = app_state.controller.core.clock()
    return await asyncio.to_thread(app_state.throughput.read, by, hidden, now)
