"""Statistics that more than one package shows."""

import math
from collections.abc import Sequence


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The least value that `percent` of the `ordered` values do not exceed.

    0 when there is none.
    """
    if not ordered:
        return 0.0
    rank = math.ceil(percent / 100 * len(ordered))
    return ordered[max(0, rank - 1)]
