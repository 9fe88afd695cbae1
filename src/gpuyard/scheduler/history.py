"""History: how long attempts waited at each offer, how they ended there, and how fast each kind of GPU turned out.

Only what an engine placed counts for an offer; the speed of a kind of GPU is learned wherever jobs complete.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median

from gpuyard.domain.gpus import GPU_CLASSES
from gpuyard.domain.offers import CPU

REMEMBERED = 64
"""So many of the newest attempts at an offer count; older ones say little of today."""
# How many attempts a first guess counts for, and what it is: a place fails 2 of 100 attempts, spot interrupts 10.
_GUESS, _FAILS, _SPOT_INTERRUPTED = 4.0, 0.02, 0.1
# How many completed jobs the catalogue's figure for a kind of GPU counts for.
_CATALOGUE = 2.0
_SWEEPS = 8
_UNKNOWN_TFLOPS, _CPU_TFLOPS = 60.0, 1.0


class End(StrEnum):
    """How an attempt at an offer went, seen from the offer: `well` whatever the job itself did; `failed` by the place's
    fault; `interrupted` by it; `nothing` left when it was asked."""

    WELL = "well"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    NOTHING = "nothing"


@dataclass(slots=True)
class Record:
    """The newest attempts at one offer: seconds waited by those that began, and how each ended."""

    waits: deque[float] = field(default_factory=lambda: deque[float](maxlen=REMEMBERED))
    ends: deque[End] = field(default_factory=lambda: deque[End](maxlen=REMEMBERED))

    def wait_s(self) -> float | None:
        """The median wait; None when nothing has begun there."""
        return median(self.waits) if self.waits else None

    def share(self, kind: End, guess: float) -> float:
        """The part of its attempts that ended so, drawn towards `guess` while there are few."""
        return (self.ends.count(kind) + _GUESS * guess) / (len(self.ends) + _GUESS)


@dataclass(frozen=True, slots=True)
class Risk:
    """What is known of an offer: `wait_s` as a median, None when unknown; the parts of attempts (0 to 1) that failed
    there, were interrupted, or found nothing left."""

    wait_s: float | None
    failed: float
    interrupted: float
    nothing: float


@dataclass(slots=True)
class History:
    """By offer, what became of the attempts there; and the speed of each kind of GPU."""

    records: dict[str, Record] = field(default_factory=dict[str, Record])
    _risks: dict[tuple[str, bool], Risk] = field(default_factory=dict[tuple[str, bool], Risk])
    _runs: dict[tuple[str, str], tuple[int, float]] = field(default_factory=dict[tuple[str, str], tuple[int, float]])
    _speeds: dict[str, float] = field(default_factory=dict[str, float])

    def began(self, offer: str, wait_s: float) -> None:
        """An attempt at the offer began after so many seconds in its engine's queue."""
        self._record(offer).waits.append(max(wait_s, 0.0))

    def ended(self, offer: str, end: End) -> None:
        """An attempt at the offer is over."""
        self._record(offer).ends.append(end)

    def _record(self, offer: str) -> Record:
        self._risks.pop((offer, True), None)
        self._risks.pop((offer, False), None)
        return self.records.get(offer) or self.records.setdefault(offer, Record())

    def risk(self, offer: str, *, spot: bool) -> Risk:
        """What to expect of the offer."""
        if offer not in self.records:
            return _UNSEEN[spot]
        known = self._risks.get((offer, spot))
        if known is None:
            record = self.records[offer]
            guess = _SPOT_INTERRUPTED if spot else 0.0
            known = Risk(record.wait_s(), record.share(End.FAILED, _FAILS), record.share(End.INTERRUPTED, guess),
                         record.share(End.NOTHING, 0.0))  # fmt: skip
            self._risks[offer, spot] = known
        return known

    def completed(self, job_type: str, gpu: str, seconds: float) -> None:
        """A job of this type ran from its start to its end on this kind of GPU (a class, or a name in lower case)."""
        if not job_type or seconds <= 0:
            return
        number, total = self._runs.get((job_type, gpu), (0, 0.0))
        self._runs[job_type, gpu] = number + 1, total + math.log(seconds)
        self._speeds.clear()

    def speed(self, gpu: str) -> float:
        """How fast the kind of GPU is, in TFLOPS of the catalogue: its published figure, corrected by what was seen."""
        if not self._speeds:
            self._speeds = _speeds(self._runs)
        return self._speeds.get(gpu) or self._speeds.setdefault(gpu, _published(gpu))


_UNSEEN = {False: Risk(None, _FAILS, 0.0, 0.0), True: Risk(None, _FAILS, _SPOT_INTERRUPTED, 0.0)}


def _published(gpu: str) -> float:
    """The catalogue's TFLOPS of a class, the slowest of a family of classes (`a100`); a guess for others."""
    rows = [spec.tflops for kind, spec in GPU_CLASSES.items() if kind == gpu or kind.startswith(f"{gpu}-")]
    return min(rows, default=_CPU_TFLOPS if gpu == CPU else _UNKNOWN_TFLOPS)


def _speeds(runs: Mapping[tuple[str, str], tuple[int, float]]) -> dict[str, float]:
    """Speeds under which each type's jobs take the same work everywhere, in sweeps between types and kinds of GPU.

    A type has a work w and a kind a speed v, and a job takes w / v seconds: in logarithms a mean of means. A type seen
    on one kind only says nothing, since its work then follows that kind's speed.
    """
    speeds = {gpu: math.log(_published(gpu)) for _, gpu in runs}
    prior = dict(speeds)
    for _ in range(_SWEEPS):
        work: dict[str, tuple[float, float]] = {}
        for (kind, gpu), (number, total) in runs.items():
            count, amount = work.get(kind, (0.0, 0.0))
            work[kind] = count + number, amount + total + number * speeds[gpu]
        sums = {gpu: (_CATALOGUE, _CATALOGUE * guess) for gpu, guess in prior.items()}
        for (kind, gpu), (number, total) in runs.items():
            count, amount = sums[gpu]
            sums[gpu] = count + number, amount + number * work[kind][1] / work[kind][0] - total
        speeds = {gpu: amount / count for gpu, (count, amount) in sums.items()}
    return {gpu: math.exp(value) for gpu, value in speeds.items()}
