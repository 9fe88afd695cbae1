"""Calls about costs; see `calls`."""

from gpuyard.client.calls import Call, StreamCall
from gpuyard.client.local_timezone import local_timezone
from gpuyard.domain.costs import CostReport

_PATH = "/api/v1/costs"


def costs(
    by: str, begin: float | None, end: float | None, timezone: str | None
) -> Call[CostReport]:
    """What attempts cost; the time zone is that of this machine unless it is named."""
    params = {"by": by, **_period(begin, end, timezone)}
    return Call("GET", _PATH, CostReport.model_validate, params=params)


def focus(begin: float | None, end: float | None, timezone: str | None) -> StreamCall:
    """The same as a CSV file in the columns of FOCUS."""
    return StreamCall(f"{_PATH}/focus", params=_period(begin, end, timezone))


def _period(
    begin: float | None, end: float | None, timezone: str | None
) -> dict[str, float | str]:
    given = {"from": begin, "to": end, "timezone": timezone or local_timezone()}
    return {name: value for name, value in given.items() if value is not None}
