"""History: how long attempts waited at each offer, how they ended there, and how fast
each kind of GPU is.

Only attempts in external queues count for offers. The speed of a kind of GPU is learned
from all complete runs.
"""

import math
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from statistics import median

from gpuyard.domain.gpus import GPU_CLASSES
from gpuyard.domain.offers import CPU

REMEMBERED = 64
"""Only so many of the newest attempts at an offer count; older ones say little about
today.
"""
# The first guess: an offer fails 2 % of its attempts, and spot interrupts 10 %. It
# counts as much as 4 attempts.
_GUESS_WEIGHT = 4.0
_FAILED = 0.02
_SPOT_INTERRUPTED = 0.1
# The catalogue's figure for a kind of GPU counts as much as 2 completed jobs.
_CATALOGUE_WEIGHT = 2.0
# Rounds of `_speeds`.
_ROUNDS = 8
_UNKNOWN_TFLOPS = 60.0
_CPU_TFLOPS = 1.0
# More than this at once happens only when a ledger is read.
_CHANGES_REMEMBERED = 256


class AttemptEnd(StrEnum):
    """How an attempt ended, as far as its offer is responsible.

    `well`: the offer did its part, whatever the job did. `failed`: the offer failed.
    `interrupted`: the offer took the machine back. `no_capacity`: it had none.
    """

    WELL = "well"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    NO_CAPACITY = "no_capacity"


@dataclass(slots=True)
class OfferRecord:
    """The newest attempts at one offer: how many seconds they waited, and how they
    ended.
    """

    waits: deque[float] = field(default_factory=lambda: deque[float](maxlen=REMEMBERED))
    ends: deque[AttemptEnd] = field(
        default_factory=lambda: deque[AttemptEnd](maxlen=REMEMBERED)
    )

    def wait_s(self) -> float | None:
        """The median wait; None if no attempt has started there."""
        return median(self.waits) if self.waits else None

    def share(self, kind: AttemptEnd, guess: float) -> float:
        """The part of its attempts that ended like this, drawn towards `guess` while
        there are few.
        """
        weighted_guess = _GUESS_WEIGHT * guess
        return (self.ends.count(kind) + weighted_guess) / (
            len(self.ends) + _GUESS_WEIGHT
        )


@dataclass(frozen=True, slots=True)
class Risk:
    """What to expect of an offer. `wait_s` is the median wait, None if unknown. The
    others are the parts (0 to 1) of attempts that end like this.
    """

    wait_s: float | None
    failed: float
    interrupted: float
    no_capacity: float


@dataclass(slots=True)
class History:
    """The record of each offer, and the speed of each kind of GPU. `changes`: how often
    anything of an offer was noted.
    """

    changes: int = 0
    records: dict[str, OfferRecord] = field(default_factory=dict[str, OfferRecord])
    _risks: dict[tuple[str, bool], Risk] = field(
        default_factory=dict[tuple[str, bool], Risk]
    )
    _runs: dict[tuple[str, str], tuple[int, float]] = field(
        default_factory=dict[tuple[str, str], tuple[int, float]]
    )
    _speeds: dict[str, float] = field(default_factory=dict[str, float])
    _changed: deque[str] = field(
        default_factory=lambda: deque[str](maxlen=_CHANGES_REMEMBERED)
    )

    def note_wait(self, offer: str, wait_s: float) -> None:
        """An attempt at the offer started after `wait_s` seconds."""
        self._record(offer).waits.append(max(wait_s, 0.0))

    def note_end(self, offer: str, end: AttemptEnd) -> None:
        """An attempt at the offer has ended."""
        self._record(offer).ends.append(end)

    def _record(self, offer: str) -> OfferRecord:
        self.changes += 1
        self._changed.append(offer)
        self._risks.pop((offer, True), None)
        self._risks.pop((offer, False), None)
        return self.records.get(offer) or self.records.setdefault(offer, OfferRecord())

    def changed_since(self, changes: int) -> set[str] | None:
        """The offers of which anything was noted after so many `changes`; None if it
        was too much to be remembered.
        """
        newer = self.changes - changes
        if not 0 <= newer <= len(self._changed):
            return None
        return set(islice(reversed(self._changed), newer))

    def risk(self, offer: str, *, spot: bool) -> Risk:
        """What to expect of the offer."""
        if offer not in self.records:
            return _UNSEEN[spot]
        known = self._risks.get((offer, spot))
        if known is None:
            record = self.records[offer]
            guess = _SPOT_INTERRUPTED if spot else 0.0
            known = Risk(
                record.wait_s(),
                record.share(AttemptEnd.FAILED, _FAILED),
                record.share(AttemptEnd.INTERRUPTED, guess),
                record.share(AttemptEnd.NO_CAPACITY, 0.0),
            )
            self._risks[offer, spot] = known
        return known

    def note_run(self, job_type: str, gpu: str, seconds: float) -> None:
        """A job of this type ran from start to end on this kind of GPU (a class, or a
        name in lower case).
        """
        if not job_type or seconds <= 0:
            return
        number, total = self._runs.get((job_type, gpu), (0, 0.0))
        self._runs[job_type, gpu] = number + 1, total + math.log(seconds)
        self._speeds.clear()

    def speed(self, gpu: str) -> float:
        """The speed of a kind of GPU in TFLOPS: the catalogue's figure, corrected by
        completed jobs.
        """
        if not self._speeds:
            self._speeds = _speeds(self._runs)
        return self._speeds.get(gpu) or self._speeds.setdefault(gpu, _published(gpu))


_UNSEEN = {
    False: Risk(None, _FAILED, 0.0, 0.0),
    True: Risk(None, _FAILED, _SPOT_INTERRUPTED, 0.0),
}


def _published(gpu: str) -> float:
    """The catalogue's TFLOPS of a class, or of the slowest class of a family (`a100`);
    a guess for other kinds.
    """
    rows = [
        spec.tflops
        for name, spec in GPU_CLASSES.items()
        if name == gpu or name.startswith(f"{gpu}-")
    ]
    return min(rows, default=_CPU_TFLOPS if gpu == CPU else _UNKNOWN_TFLOPS)


def _speeds(runs: Mapping[tuple[str, str], tuple[int, float]]) -> dict[str, float]:
    """The speeds that explain the run times best: jobs of one type do the same work on
    every kind of GPU.

    A type has work w and a kind of GPU has speed v, and a job takes w / v seconds. With
    logarithms, each is a mean that depends on the other, so both are computed in turn.
    A type that ran on one kind only has no effect, because its work then follows from
    the speed of that kind.

    `runs`: the number of jobs and the sum of the logarithms of their seconds, by type
    and kind of GPU.
    """
    log_prior = {gpu: math.log(_published(gpu)) for _, gpu in runs}
    log_speeds = dict(log_prior)
    for _ in range(_ROUNDS):
        log_work = _log_work(runs, log_speeds)
        counts = dict.fromkeys(log_prior, _CATALOGUE_WEIGHT)
        sums = {gpu: _CATALOGUE_WEIGHT * prior for gpu, prior in log_prior.items()}
        for (job_type, gpu), (number, log_seconds) in runs.items():
            counts[gpu] += number
            sums[gpu] += number * log_work[job_type] - log_seconds
        log_speeds = {gpu: sums[gpu] / counts[gpu] for gpu in sums}
    return {gpu: math.exp(log_speed) for gpu, log_speed in log_speeds.items()}


def _log_work(
    runs: Mapping[tuple[str, str], tuple[int, float]], log_speeds: Mapping[str, float]
) -> dict[str, float]:
    """The mean logarithm of the work of each type's jobs at these speeds."""
    counts: dict[str, float] = defaultdict(float)
    sums: dict[str, float] = defaultdict(float)
    for (job_type, gpu), (number, log_seconds) in runs.items():
        counts[job_type] += number
        sums[job_type] += log_seconds + number * log_speeds[gpu]
    return {job_type: sums[job_type] / counts[job_type] for job_type in sums}
