"""The life of a job, of an attempt and of a GPU, each as one table of legal moves."""

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from gpuyard.domain.errors import IllegalMoveError


class JobState(StrEnum):
    """Where a job is. The edges' own words (S1, S2, Slurm, …) map onto these; see `docs/architecture.md`."""

    QUEUED = "queued"
    ASSIGNED = "assigned"
    RUNNING = "running"
    UNKNOWN = "unknown"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"

    @property
    def terminal(self) -> bool:
        """True when nothing but its owner's `resume` will change the job any more."""
        return self in TERMINAL


TERMINAL = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.TIMED_OUT})

_Q, _A, _R, _U = JobState.QUEUED, JobState.ASSIGNED, JobState.RUNNING, JobState.UNKNOWN
JOB_MOVES: Mapping[JobState, frozenset[JobState]] = {
    _Q: frozenset({_A, JobState.CANCELLED, JobState.FAILED}),
    _A: frozenset({_R, _Q, _U}) | TERMINAL,
    _R: frozenset({_Q, _U}) | TERMINAL,
    _U: frozenset({_R, _Q}) | TERMINAL,
    JobState.COMPLETED: frozenset(),
    # Only an explicit `resume` by the owner leads out of these: no late report and no retry does.
    JobState.FAILED: frozenset({_Q}),
    JobState.CANCELLED: frozenset({_Q}),
    JobState.TIMED_OUT: frozenset({_Q}),
}


class AttemptState(StrEnum):
    """One execution: intent recorded, sent to the provider, accepted and waiting, running, being stopped, over."""

    INTENDED = "intended"
    SENT = "sent"
    PENDING = "pending"
    RUNNING = "running"
    ENDING = "ending"
    ENDED = "ended"
    LOST = "lost"

    @property
    def live(self) -> bool:
        """True while the attempt holds its booking."""
        return self not in (AttemptState.ENDED, AttemptState.LOST)


_OVER = frozenset({AttemptState.ENDED, AttemptState.LOST})
ATTEMPT_MOVES: Mapping[AttemptState, frozenset[AttemptState]] = {
    AttemptState.INTENDED: frozenset({AttemptState.SENT, AttemptState.RUNNING, AttemptState.ENDING}) | _OVER,
    AttemptState.SENT: frozenset({AttemptState.PENDING, AttemptState.RUNNING, AttemptState.ENDING}) | _OVER,
    AttemptState.PENDING: frozenset({AttemptState.RUNNING, AttemptState.ENDING}) | _OVER,
    AttemptState.RUNNING: frozenset({AttemptState.ENDING}) | _OVER,
    AttemptState.ENDING: _OVER,
    AttemptState.ENDED: frozenset(),
    AttemptState.LOST: frozenset(),
}


class GpuState(StrEnum):
    """What a GPU is doing; computed from health, bookings, residents' phases and live attempts."""

    IDLE = "idle"
    BOOTING_LLM = "booting_llm"
    BOOTING_SCRIPT = "booting_script"
    LLM_READY = "llm_ready"
    LLM_BUSY = "llm_busy"
    SCRIPT_BUSY = "script_busy"
    COOLING = "cooling"
    UNLOADING = "unloading"
    ASLEEP = "asleep"
    DRAINING = "draining"
    OFFLINE = "offline"
    QUARANTINED = "quarantined"


def gpu_state(health: GpuState, resident: GpuState | None, *, busy: bool, draining: bool) -> GpuState:
    """What a GPU is doing: its health comes first, then its work, then the wish that it should get no more.

    `health` is `idle` for a well one; `resident` is what a model on it makes of it, if there is one.
    """
    if health is not GpuState.IDLE:
        return health
    if resident:
        return resident
    if busy:
        return GpuState.SCRIPT_BUSY
    return GpuState.DRAINING if draining else GpuState.IDLE


_ANY_FAULT = frozenset({GpuState.OFFLINE, GpuState.QUARANTINED, GpuState.DRAINING})
GPU_MOVES: Mapping[GpuState, frozenset[GpuState]] = {
    GpuState.IDLE: frozenset({GpuState.BOOTING_LLM, GpuState.BOOTING_SCRIPT, GpuState.SCRIPT_BUSY}) | _ANY_FAULT,
    GpuState.BOOTING_LLM: frozenset({GpuState.LLM_READY, GpuState.COOLING}) | _ANY_FAULT,
    GpuState.BOOTING_SCRIPT: frozenset({GpuState.SCRIPT_BUSY, GpuState.COOLING}) | _ANY_FAULT,
    GpuState.LLM_READY: frozenset({GpuState.LLM_BUSY, GpuState.UNLOADING, GpuState.ASLEEP, GpuState.COOLING})
    | _ANY_FAULT,
    GpuState.LLM_BUSY: frozenset({GpuState.LLM_READY, GpuState.COOLING}) | _ANY_FAULT,
    GpuState.SCRIPT_BUSY: frozenset({GpuState.COOLING}) | _ANY_FAULT,
    GpuState.COOLING: frozenset({GpuState.IDLE, GpuState.LLM_READY}) | _ANY_FAULT,
    GpuState.UNLOADING: frozenset({GpuState.COOLING}) | _ANY_FAULT,
    GpuState.ASLEEP: frozenset({GpuState.LLM_READY, GpuState.UNLOADING, GpuState.BOOTING_SCRIPT}) | _ANY_FAULT,
    GpuState.DRAINING: frozenset({GpuState.IDLE, GpuState.COOLING, GpuState.OFFLINE, GpuState.QUARANTINED}),
    GpuState.OFFLINE: frozenset({GpuState.COOLING, GpuState.IDLE, GpuState.QUARANTINED}),
    GpuState.QUARANTINED: frozenset({GpuState.COOLING, GpuState.IDLE, GpuState.OFFLINE}),
}

State = TypeVar("State", bound=StrEnum)


def check_move(moves: Mapping[State, frozenset[State]], what: str, old: State, new: State) -> None:
    """Raise IllegalMoveError, naming the legal moves, unless `moves` allows `what` to go from `old` to `new`."""
    if new not in moves[old]:
        legal = ", ".join(sorted(moves[old])) or "nothing: it is final"
        raise IllegalMoveError(f"{what} cannot go from {old} to {new}.", f"From {old} it may go to: {legal}.")
