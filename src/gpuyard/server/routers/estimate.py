"""`/api/v1/estimate`: where a job could run, how long that takes and what it costs,
without submitting it.
"""

from dataclasses import asdict
from typing import Any

from fastapi import Request

from gpuyard.controller.arrays import one_task
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.offers import Strategy
from gpuyard.server.api_router import api_router
from gpuyard.server.body import read_bodies
from gpuyard.server.callers import submitter_of
from gpuyard.server.concealing import conceal
from gpuyard.server.dependencies import TheAppState
from gpuyard.server.openapi import json_body
from gpuyard.server.permissions import visibility_of

router = api_router("/estimate", tag="estimate")


@router.post("", openapi_extra=json_body("JobSpec", "JobConfig"))
async def estimate(
    request: Request, app_state: TheAppState, strategy: Strategy | None = None
) -> dict[str, Any]:
    """The places that suit a JobSpec (or S2's JobConfig), best first, then the others
    with what they lack. `ahead` is how many jobs would come before it; `in_the_way`
    says whose share or quota that is. `deadline` says whether that can be met, and
    `in_time` whether it will be at the best place, if that is known.

    `strategy` instead of the instance's own; a job that names one keeps its own. Of an
    array, it is about one of its `tasks`.
    """
    bodies, many = await read_bodies(request)
    if many:
        raise InvalidInputError.of("(body)", "is a list", "send one job")
    (body, tasks) = one_task(bodies[0])
    user = submitter_of(request.scope)
    visibility = visibility_of(request.scope, app_state.controller)
    requests = app_state.controller.requests
    found = await requests.estimate(body, strategy, user, visibility)
    return {
        "tasks": tasks,
        "strategy": found.strategy,
        "run_s": found.run_s,
        "basis": found.basis,
        "ahead": found.ahead,
        "in_the_way": conceal(app_state.queries, visibility, found.in_the_way),
        "deadline": found.deadline,
        "in_time": found.in_time,
        "currency": app_state.controller.core.settings.billing.currency,
        "items": [asdict(place) for place in found.places],
        "next": None,
    }
