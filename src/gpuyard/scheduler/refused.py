"""What was refused in one start pass, so that most jobs are refused by a look-up."""

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

from gpuyard.domain.shape import Shape
from gpuyard.scheduler.reservation import may_outlast

Ids = frozenset[str]
"""Ids of advance reservations."""


class _Refusal(NamedTuple):
    """These amounts found no place for a job that may outlast `until` (UTC seconds) and
    is kept out by these advance reservations.
    """

    gpus: int
    cpus: float
    memory_gb: float
    until: float
    kept_out_by: Ids


@dataclass(slots=True)
class Refusals:
    """The refusals of one pass. Each also holds for jobs that ask for at least as much,
    may outlast the same reservation, and are kept out by at least the same advance
    reservations.
    """

    # By the shape without its amounts.
    _refusals: dict[Shape, list[_Refusal]] = field(
        default_factory=dict[Shape, list[_Refusal]]
    )

    def covers(self, shape: Shape, end: float, kept_out_by: Ids) -> bool:
        """True if a job that ends at `end` at the latest need not be tried."""
        for refusal in self._refusals.get(_constraints(shape), ()):
            if (
                may_outlast(end, refusal.until)
                and refusal.gpus <= shape.gpus
                and refusal.cpus <= shape.cpus
                and refusal.memory_gb <= shape.memory_gb
                and refusal.kept_out_by <= kept_out_by
            ):
                return True
        return False

    def add(self, shape: Shape, until: float, kept_out_by: Ids) -> None:
        """Note that a job of this shape which may outlast `until` was refused."""
        refusal = _Refusal(shape.gpus, shape.cpus, shape.memory_gb, until, kept_out_by)
        self._refusals.setdefault(_constraints(shape), []).append(refusal)


@lru_cache(maxsize=1 << 14)
def _constraints(shape: Shape) -> Shape:
    """The shape without its amounts."""
    return replace(shape, gpus=0, cpus=0.0, memory_gb=0.0)
