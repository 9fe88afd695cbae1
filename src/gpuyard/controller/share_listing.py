"""The shares of all, for whoever asks."""

from gpuyard.config.settings import Settings
from gpuyard.controller.visibility import Visibility
from gpuyard.domain.cost_keys import INSTANCE_OWNER
from gpuyard.domain.fair_shares import FairShare, FairShares
from gpuyard.scheduler.standings import ShareLevel, Standing, standings
from gpuyard.scheduler.view import View

_HOUR_S = 3600.0


def fair_shares(
    view: View, settings: Settings, visibility: Visibility, now: float
) -> FairShares:
    """What stands to whom and what they have used, until `now` (UTC seconds). Projects
    that do not exist for who asks are left out, but organisations have their use.
    """
    found = standings(view, now)
    seen = [one for one in found if visibility.sees(one.project or None)]
    return FairShares(
        policy=settings.scheduler.policy,
        half_life_s=settings.fair_share.half_life,
        items=[_shown(one) for one in seen],
    )


def _shown(standing: Standing) -> FairShare:
    is_organisation = standing.level is ShareLevel.ORGANISATION
    organisation = standing.name if is_organisation else standing.organisation
    is_user = standing.level is ShareLevel.USER
    times = standing.used / standing.due if standing.gpu_seconds_of_all > 0 else None
    return FairShare(
        level=standing.level,
        organisation=organisation or None,
        project=standing.project or None,
        user=(standing.name or INSTANCE_OWNER) if is_user else None,
        shares=standing.shares,
        due=standing.due,
        used=standing.used,
        times=times,
        gpu_hours=standing.gpu_seconds / _HOUR_S,
    )
