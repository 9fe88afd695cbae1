"""Spot offers, which a provider may take back: when a job had better go elsewhere."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpuyard.domain.offers import Offer
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.optimiser import Forecast

# What a zone needs for one it may need for others, too, for so long.
_ZONE_S = 1800.0


@dataclass(slots=True)
class InterruptedZones:
    """Where attempts on spot offers were interrupted, by provider and zone: when last
    (UTC seconds).
    """

    _at: dict[tuple[str, str], float] = field(
        default_factory=dict[tuple[str, str], float]
    )

    def note(self, offer: Offer, at: float) -> None:
        """An attempt there was interrupted."""
        if offer.spot:
            self._at[offer.provider, offer.zone] = at

    def any_now(self, now: float) -> bool:
        """Whether there is any zone of which `has` may be true."""
        return any(now < at + _ZONE_S for at in self._at.values())

    def has(self, offer: Offer, now: float) -> bool:
        """Whether another attempt on spot is likely to be interrupted there, too."""
        at = self._at.get((offer.provider, offer.zone))
        return offer.spot and at is not None and now < at + _ZONE_S


def is_tired_of_spot(
    job: LiveJob, forecast: Forecast, attempts: int, now: float
) -> bool:
    """Whether an interruption would cost the job too much: it was preempted so many
    times (`attempts`), or it could not run twice before its deadline.
    """
    if not forecast.offer.spot:
        return False
    if job.service.preemptions >= attempts:
        return True
    twice_s = 2 * (forecast.wait_s + forecast.run_s)
    return job.deadline is not None and now + twice_s > job.deadline


def in_careful_order(
    job: LiveJob,
    forecasts: Sequence[Forecast],
    zones: InterruptedZones,
    attempts: int,
    now: float,
) -> Sequence[Forecast]:
    """The forecasts, the best first: what the job is tired of comes last, and of the
    spot offers those in zones that have just interrupted others come after the rest.
    """
    may_be_tired = job.deadline is not None or job.service.preemptions >= attempts
    if not may_be_tired and not zones.any_now(now):
        return forecasts
    kept: list[Forecast] = []
    last: list[Forecast] = []
    for forecast in forecasts:
        is_tired = is_tired_of_spot(job, forecast, attempts, now)
        (last if is_tired else kept).append(forecast)
    spot = [forecast for forecast in kept if forecast.offer.spot]
    # The sort is stable: of two zones alike, the better offer stays the first.
    calm_first = iter(sorted(spot, key=lambda one: zones.has(one.offer, now)))
    ordered = [next(calm_first) if one.offer.spot else one for one in kept]
    return (*ordered, *last)
