"""The states of jobs, attempts and GPUs, with tables of the legal changes."""

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from gpuyard.domain.errors import IllegalMoveError


class JobState(StrEnum):
    """The state of a job.

    The words of other systems (S1, S2, Slurm, …) are mapped to these; see
    `docs/architecture.md`.
    """

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
        """True when only its owner's `resume` can change the job any more."""
        return self in TERMINAL


TERMINAL = frozenset(
    {JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.TIMED_OUT}
)

_Q = JobState.QUEUED
_A = JobState.ASSIGNED
_R = JobState.RUNNING
_U = JobState.UNKNOWN
JOB_MOVES: Mapping[JobState, frozenset[JobState]] = {
    _Q: frozenset({_A, JobState.CANCELLED, JobState.FAILED}),
    _A: frozenset({_R, _Q, _U}) | TERMINAL,
    _R: frozenset({_Q, _U}) | TERMINAL,
    _U: frozenset({_R, _Q}) | TERMINAL,
    JobState.COMPLETED: frozenset(),
    # Only an explicit `resume` by the owner leads out of these: not a late report, not
    # a retry.
    JobState.FAILED: frozenset({_Q}),
    JobState.CANCELLED: frozenset({_Q}),
    JobState.TIMED_OUT: frozenset({_Q}),
}


class ParentEnd(StrEnum):
    """How the end of a job must be for another that depends on it."""

    COMPLETED = "completed"
    FAILED = "failed"
    """Any end but `completed`: it failed, was cancelled or timed out."""
    ANY = "any"

    def allows(self, state: JobState) -> bool:
        """Whether a job that depends on one in this state may start."""
        if not state.terminal:
            return False
        if self is ParentEnd.ANY:
            return True
        return (state is JobState.COMPLETED) == (self is ParentEnd.COMPLETED)


class AttemptState(StrEnum):
    """One execution: intent recorded, sent to the provider, accepted and waiting,
    running, being stopped, ended.
    """

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
    AttemptState.INTENDED: (
        frozenset({AttemptState.SENT, AttemptState.RUNNING, AttemptState.ENDING})
        | _OVER
    ),
    AttemptState.SENT: (
        frozenset({AttemptState.PENDING, AttemptState.RUNNING, AttemptState.ENDING})
        | _OVER
    ),
    AttemptState.PENDING: (
        frozenset({AttemptState.RUNNING, AttemptState.ENDING}) | _OVER
    ),
    AttemptState.RUNNING: frozenset({AttemptState.ENDING}) | _OVER,
    AttemptState.ENDING: _OVER,
    AttemptState.ENDED: frozenset(),
    AttemptState.LOST: frozenset(),
}


class GpuState(StrEnum):
    """What a GPU is doing; computed from its health, bookings, models and live
    attempts.
    """

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


def gpu_state(
    health: GpuState, resident: GpuState | None, *, busy: bool, draining: bool
) -> GpuState:
    """What a GPU is doing: its health comes first, then its work, then the wish that it
    gets no more work.

    `health` is `idle` for a healthy GPU. `resident` is the state that a model on it
    causes, if there is one.
    """
    if health is not GpuState.IDLE:
        return health
    if resident:
        return resident
    if busy:
        return GpuState.SCRIPT_BUSY
    return GpuState.DRAINING if draining else GpuState.IDLE


State = TypeVar("State", bound=StrEnum)


def check_move(
    moves: Mapping[State, frozenset[State]], what: str, old: State, new: State
) -> None:
    """Raise IllegalMoveError, which names the legal changes, unless `moves` allows
    `what` to go from `old` to `new`.
    """
    if new not in moves[old]:
        legal = ", ".join(sorted(moves[old])) or "nothing: it is final"
        raise IllegalMoveError(
            f"{what} cannot go from {old} to {new}.",
            f"From {old} it may go to: {legal}.",
        )
