"""`/api/v1/shares`: the fair shares of organisations, projects and users."""

from fastapi import Request

from gpuyard.controller.share_listing import fair_shares
from gpuyard.domain.fair_shares import FairShares
from gpuyard.server.api_router import api_router
from gpuyard.server.dependencies import TheAppState
from gpuyard.server.permissions import visibility_of

router = api_router("/shares", tag="shares")


@router.get("")
async def list_shares(request: Request, app_state: TheAppState) -> FairShares:
    """What stands to each organisation, project and user under the policy `fair`, and
    what they have used of it. Each project is followed by its users, each organisation
    by its projects. Those are listed who have a share in the settings, have jobs, or
    have used something. Projects that do not exist for you are left out.
    """
    core = app_state.controller.core
    visibility = visibility_of(request.scope, app_state.controller)
    return fair_shares(core.view, core.settings, visibility, core.clock())
