"""The reasons why attempts and jobs end, and what follows from each.

A reason is a plain string in the ledger, in the API and on the wire. An old ledger or a
provider from elsewhere may use a string that is not listed here, so fields that hold a
reason stay `str`, and `Reason.of` classifies any string.
"""

from dataclasses import dataclass
from enum import StrEnum


class Blame(StrEnum):
    """Who or what caused the end of an attempt."""

    PROGRAM = "program"
    """The program that ran."""
    USER = "user"
    """The owner of the job, by a request or by a wrong specification."""
    PLACE = "place"
    """The node, the GPU or the external queue where the attempt was."""
    NOBODY = "nobody"
    """gpuyard needed the place, or a shared service was away."""


class RetryRule(StrEnum):
    """Whether a job that ended for a reason is tried again."""

    NEVER = "never"
    """Another attempt would end in the same way, or is not wanted."""
    COUNTED = "counted"
    """As often as the job's `retry_count` allows."""
    FREE = "free"
    """Always, and it uses up no retry."""


class RetryCause(StrEnum):
    """What kind of end a job may be tried again after."""

    TIMEOUT = "timeout"
    """It ran longer than its time limit."""
    FAILURE = "failure"
    """Its program failed."""
    LOST = "lost"
    """Its place could not start it, or was lost."""


class Reason(StrEnum):
    """Why an attempt or a job ended. Part of the API: a value is never changed."""

    # The program ended.
    EXIT_CODE = "exit_code"
    KILLED_BY_SIGNAL = "killed_by_signal"
    OUT_OF_MEMORY = "out_of_memory"
    GPU_OUT_OF_MEMORY = "gpu_out_of_memory"
    SHARE_FAILED = "share_failed"
    TIMED_OUT = "timed_out"
    BROKEN_FILE = "broken_file"
    NO_ANSWER = "no_answer"
    # Its owner ended it, or asked for what cannot be.
    CANCELLED = "cancelled"
    EVICTED = "evicted"
    BUDGET = "budget"
    DEPENDENCY_FAILED = "dependency_failed"
    COMMAND_NOT_FOUND = "command_not_found"
    NOT_EXECUTABLE = "not_executable"
    WORKDIR_MISSING = "workdir_missing"
    INVALID_ARGUMENT = "invalid_argument"
    NO_IMAGE = "no_image"
    NOT_STARTED = "not_started"
    BAD_RESUME = "bad_resume"
    SECRET_MISSING = "secret_missing"
    ENVIRONMENT_MISSING = "environment_missing"
    CODE_MISSING = "code_missing"
    DATASET_MISSING = "dataset_missing"
    PACKAGES_FAILED = "packages_failed"
    # gpuyard ended it, or could not begin it yet.
    PREEMPTED = "preempted"
    REVOKED = "revoked"
    SUPERSEDED = "superseded"
    STORAGE_UNREACHABLE = "storage_unreachable"
    # The place could not start it.
    SUBMIT_FAILED = "submit_failed"
    SECRET_UNAVAILABLE = "secret_unavailable"
    DATASET_UNAVAILABLE = "dataset_unavailable"
    SPAWN_FAILED = "spawn_failed"
    LIMITS_FAILED = "limits_failed"
    LOG_UNWRITABLE = "log_unwritable"
    ACCOUNT_REFUSED = "account_refused"
    GPU_BUSY = "gpu_busy"
    AGENT_FAILED = "agent_failed"
    # The place was lost while it ran.
    GPU_FAILED = "gpu_failed"
    NODE_LOST = "node_lost"
    NODE_REBOOTED = "node_rebooted"
    NODE_SILENT = "node_silent"
    ATTEMPT_LOST = "attempt_lost"
    EXIT_STATUS_LOST = "exit_status_lost"
    OTHER = "other"
    """Stands for every string that is not listed here."""

    @classmethod
    def of(cls, text: str | None) -> "Reason":
        """The reason that `text` names; OTHER for an unknown string or none."""
        try:
            return cls(text or cls.OTHER)
        except ValueError:
            return cls.OTHER

    @property
    def blame(self) -> Blame:
        """Who or what caused this end."""
        return _FACTS[self].blame

    @property
    def retry(self) -> RetryRule:
        """Whether the job is tried again."""
        return _FACTS[self].retry

    @property
    def cause(self) -> RetryCause:
        """What kind of end this is, for a job that is tried again only after some."""
        if self is Reason.TIMED_OUT:
            return RetryCause.TIMEOUT
        if self.blame is Blame.PLACE:
            return RetryCause.LOST
        return RetryCause.FAILURE

    @property
    def lost(self) -> bool:
        """True when it is not known how the program ended: the attempt is `lost`."""
        return _FACTS[self].lost

    @property
    def ends_job(self) -> bool:
        """True when an attempt that is ended for it is not to save its work: its job
        is over, too.
        """
        return self in (Reason.CANCELLED, Reason.EVICTED)

    @property
    def asks_to_save(self) -> bool:
        """True when an attempt that is ended for it gets the signal to save its work
        first, also where there is no agent.
        """
        return self in (Reason.PREEMPTED, Reason.BUDGET)

    @property
    def work_goes_on(self) -> bool:
        """True when another attempt goes on with the work of one that ended so."""
        return self in (Reason.PREEMPTED, Reason.REVOKED, Reason.SUPERSEDED)

    @property
    def never_began(self) -> bool:
        """True when nothing of the attempt began: it was withdrawn, or its checkpoint
        could not be fetched. It says nothing of its provider.
        """
        return self in (Reason.REVOKED, Reason.STORAGE_UNREACHABLE)

    @property
    def means_stopped(self) -> bool:
        """True when a provider that gives it says that the attempt was stopped, and did
        not end by itself.
        """
        return self in (
            Reason.TIMED_OUT,
            Reason.CANCELLED,
            Reason.PREEMPTED,
            Reason.REVOKED,
        )

    @property
    def ended_by_either_side(self) -> bool:
        """True when it does not tell whether gpuyard or the place ended the attempt."""
        return self in (Reason.PREEMPTED, Reason.REVOKED)

    @property
    def counts_against_batch(self) -> bool:
        """True when a batch's worker that ended so counts as one that failed.

        Some of these in a row end the batch. A worker that lost its place while it ran
        says nothing about the next one; one that could not be started does.
        """
        return _FACTS[self].counts_against_batch

    @property
    def sentence(self) -> str:
        """What happened, for people: a short clause without a full stop."""
        return _FACTS[self].sentence

    @classmethod
    def meaning_of(cls, text: str | None) -> str:
        """The sentence of the reason that `text` names; empty for any other string."""
        reason = cls.of(text)
        return "" if reason is cls.OTHER else reason.sentence


@dataclass(frozen=True, slots=True)
class _Facts:
    blame: Blame
    sentence: str
    retry: RetryRule = RetryRule.COUNTED
    lost: bool = False
    counts_against_batch: bool = True


def _program(sentence: str) -> _Facts:
    return _Facts(Blame.PROGRAM, sentence)


def _user(sentence: str) -> _Facts:
    """What the owner has to mend first."""
    return _Facts(Blame.USER, sentence, RetryRule.NEVER)


def _taken(sentence: str) -> _Facts:
    """The attempt did nothing wrong: the job goes back into the queue."""
    return _Facts(Blame.NOBODY, sentence, RetryRule.FREE, counts_against_batch=False)


def _cannot_start(sentence: str) -> _Facts:
    return _Facts(Blame.PLACE, sentence)


def _place_lost(sentence: str) -> _Facts:
    return _Facts(Blame.PLACE, sentence, lost=True, counts_against_batch=False)


_FACTS = {
    Reason.EXIT_CODE: _program("the program ended with an exit code other than 0"),
    Reason.KILLED_BY_SIGNAL: _program("a signal ended the program"),
    Reason.OUT_OF_MEMORY: _program("the program needed more memory than there was"),
    Reason.GPU_OUT_OF_MEMORY: _program(
        "the program needed more GPU memory than there was"
    ),
    Reason.SHARE_FAILED: _program("what it ran on another of its nodes failed first"),
    Reason.BROKEN_FILE: _program(
        "a file in which gpuyard notes how the attempt goes was changed or damaged"
    ),
    Reason.NO_ANSWER: _program("the model gave no answer to the prompt"),
    Reason.TIMED_OUT: _program("it ran longer than its time limit"),
    Reason.CANCELLED: _Facts(
        Blame.USER, "it was cancelled", RetryRule.NEVER, counts_against_batch=False
    ),
    Reason.EVICTED: _Facts(
        Blame.USER,
        "its model made room, or was not needed any more",
        RetryRule.NEVER,
        counts_against_batch=False,
    ),
    Reason.BUDGET: _Facts(
        Blame.USER,
        "its budget was spent",
        RetryRule.NEVER,
        counts_against_batch=False,
    ),
    Reason.DEPENDENCY_FAILED: _user(
        "a job that it depends on did not end as it must for this one"
    ),
    Reason.COMMAND_NOT_FOUND: _user("the program does not exist"),
    Reason.NOT_EXECUTABLE: _user("the program cannot be executed"),
    Reason.WORKDIR_MISSING: _user("the working directory cannot be used"),
    Reason.INVALID_ARGUMENT: _user(
        "an argument or environment variable cannot be passed to a program"
    ),
    Reason.NO_IMAGE: _user("the container image cannot be pulled"),
    Reason.NOT_STARTED: _Facts(Blame.USER, "the container could not be started"),
    Reason.BAD_RESUME: _user("the checkpoint to resume from is gone or damaged"),
    Reason.SECRET_MISSING: _user("a secret that it refers to does not exist"),
    Reason.ENVIRONMENT_MISSING: _user(
        "the environment that it was submitted with is no longer stored, or damaged"
    ),
    Reason.CODE_MISSING: _user(
        "the code that it was submitted with is no longer stored, or damaged"
    ),
    Reason.PACKAGES_FAILED: _user("the packages that it needs could not be installed"),
    Reason.DATASET_MISSING: _user("a dataset that it reads was removed, or is damaged"),
    Reason.PREEMPTED: _taken("its place was needed for another job, or taken back"),
    Reason.REVOKED: _taken("it was withdrawn before it began"),
    Reason.SUPERSEDED: _taken("the ledger had already recorded its end"),
    Reason.STORAGE_UNREACHABLE: _taken(
        "the storage with its checkpoint does not answer"
    ),
    Reason.SUBMIT_FAILED: _cannot_start("the provider did not accept it"),
    Reason.SECRET_UNAVAILABLE: _cannot_start("a secret could not be read"),
    Reason.DATASET_UNAVAILABLE: _cannot_start(
        "the node could not make its copy of a dataset"
    ),
    Reason.SPAWN_FAILED: _cannot_start("the node could not start a process"),
    Reason.LIMITS_FAILED: _cannot_start("the node could not set its resource limits"),
    Reason.LOG_UNWRITABLE: _cannot_start("the node could not write its log file"),
    Reason.ACCOUNT_REFUSED: _cannot_start(
        "the node could not run it under its account"
    ),
    Reason.GPU_BUSY: _cannot_start("another attempt was using its GPU"),
    Reason.AGENT_FAILED: _cannot_start("the node's agent had an internal error"),
    Reason.GPU_FAILED: _Facts(
        Blame.PLACE, "its GPU failed", counts_against_batch=False
    ),
    Reason.NODE_LOST: _place_lost("its node failed"),
    Reason.NODE_REBOOTED: _place_lost("its node was rebooted while it ran"),
    Reason.NODE_SILENT: _place_lost("its node did not answer for too long"),
    Reason.ATTEMPT_LOST: _place_lost("its place no longer knows the attempt"),
    Reason.EXIT_STATUS_LOST: _place_lost("it ended, and its exit code is not known"),
    Reason.OTHER: _program("the provider gave its own reason"),
}
