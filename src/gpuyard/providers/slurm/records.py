"""Slurm's jobs and nodes, and what its state names and reasons mean."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuyard.domain.jobconfig import JobStatus
from gpuyard.domain.reasons import Reason

PENDING = frozenset(
    {
        "PENDING",
        "CONFIGURING",
        "REQUEUED",
        "REQUEUE_FED",
        "REQUEUE_HOLD",
        "RESV_DEL_HOLD",
        "SPECIAL_EXIT",
    }
)
_RUNNING = frozenset(
    {
        "RUNNING",
        "COMPLETING",
        "SUSPENDED",
        "STOPPED",
        "SIGNALING",
        "STAGE_OUT",
        "RESIZING",
    }
)
ENDS: Mapping[str, str] = {
    "COMPLETED": "",
    "FAILED": "",
    "TIMEOUT": Reason.TIMED_OUT,
    "DEADLINE": Reason.TIMED_OUT,
    "CANCELLED": Reason.CANCELLED,
    "NODE_FAIL": Reason.NODE_LOST,
    "BOOT_FAIL": Reason.NODE_LOST,
    "PREEMPTED": Reason.PREEMPTED,
    "REVOKED": Reason.PREEMPTED,
    "OUT_OF_MEMORY": Reason.OUT_OF_MEMORY,
}
"""Our reason for each of Slurm's final states."""
_WAIT_REASONS: Mapping[str, str] = {
    "Priority": "others come before it",
    "Resources": "what it needs is in use",
    "JobHeldUser": "it is held; `scontrol release` lets it go",
    "JobHeldAdmin": "an administrator holds it",
    "PartitionDown": "the partition is down",
    "PartitionTimeLimit": "it asks for more time than the partition allows",
    "PartitionNodeLimit": "it asks for more nodes than the partition allows",
    "BeginTime": "it starts later",
    "ReqNodeNotAvail": "the nodes it needs are not available",
    "Dependency": "it waits for another job",
    "QOSMaxJobsPerUserLimit": "its user runs as many jobs as the QOS allows",
    "AssocGrpGRES": "its account uses as many GPUs as it may",
    "Licenses": "it waits for a licence",
}


@dataclass(frozen=True, slots=True)
class SlurmRow:
    """A job as Slurm lists it.

    Times are UTC seconds. `reason` is Slurm's word for why the job waits. `output` is
    the file it writes to, where that was asked for.
    """

    job_id: str
    state: str
    started_at: float | None = None
    ended_at: float | None = None
    nodes: str = ""
    attempt_id: str = ""
    reason: str = ""
    exit_code: int | None = None
    signal: int | None = None
    output: str = ""

    @property
    def index(self) -> str:
        """The job's index in its array; empty for a job outside an array."""
        return self.job_id.partition("_")[2]

    @property
    def order(self) -> tuple[int, ...]:
        """A sort key: jobs submitted earlier come first."""
        return tuple(int(part) for part in self.job_id.split("_"))

    @property
    def status(self) -> JobStatus:
        """PENDING, RUNNING, or how it ended as far as Slurm knows.

        UNKNOWN for a state that only other versions of Slurm have.
        """
        if self.state in PENDING:
            return JobStatus.PENDING
        if self.state in _RUNNING:
            return JobStatus.RUNNING
        if self.state not in ENDS:
            return JobStatus.UNKNOWN
        return JobStatus.COMPLETED if self.state == "COMPLETED" else JobStatus.FAILED


@dataclass(frozen=True, slots=True)
class Hardware:
    """The nodes of one kind in one partition; `up` of them can be used.

    `limit_s` is the partition's longest run time; None means unlimited.
    """

    partition: str
    nodes: int
    up: int
    cpus: int
    memory_gb: float
    gpu: str = ""
    gpus: int = 0
    default: bool = False
    limit_s: float | None = None
    why_down: str = ""


def name_hardware(found: Sequence[Hardware]) -> dict[str, Hardware]:
    """Each entry under a unique name.

    The name is the partition and its GPUs. Where that is not unique, it also has the
    number of GPUs, cores and gigabytes.
    """
    short_names = [
        f"{item.partition}/{item.gpu or 'gpu'}" if item.gpus else item.partition
        for item in found
    ]
    named: dict[str, Hardware] = {}
    for name, item in zip(short_names, found, strict=True):
        if short_names.count(name) > 1:
            name = f"{name}x{item.gpus}-{item.cpus}c-{item.memory_gb:.0f}g"
        named[name] = item
    return named


def explain_reason(word: str) -> str:
    """Slurm's word for why a job waits, with its meaning where we know it."""
    meaning = _WAIT_REASONS.get(word.split(",")[0].strip("()"))
    return f"{word}: {meaning}" if meaning else word


def hosts(nodes: str) -> str:
    """The nodes of a row for people.

    Slurm writes `(null)`, `None assigned` or `None` when there are none.
    """
    return "" if nodes in ("(null)", "None assigned", "None") else nodes


def read_gres(gres: str) -> tuple[str, int]:
    """`gpu:a100:2(S:0-1),tmp:1` as the type and number of GPUs: `("a100", 2)`.

    The type is empty when there are several.
    """
    total = 0
    gpu_types = set[str]()
    for item in re.sub(r"\([^)]*\)", "", gres).split(","):
        words = item.split(":")
        if words[0] == "gpu" and words[-1].isdigit():
            total += int(words[-1])
            gpu_types.update(words[1:-1])
    gpu_type = gpu_types.pop() if len(gpu_types) == 1 else ""
    return gpu_type, total


# --- job arrays ---


def is_job_id(name: str) -> bool:
    """Whether this is a Slurm job id: `12`, or `12_3` for index 3 of array 12."""
    return re.fullmatch(r"\d+(_\d+)?", name) is not None


def array_indices(listed: str) -> list[int]:
    """The indices in `0-2,7,8-12:2%4`, Slurm's form for the pending jobs of an array.

    Parts that cannot be read are skipped.
    """
    found: list[int] = []
    for part in listed.partition("%")[0].split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part)
        if match is None:
            continue
        first = int(match[1])
        last = int(match[2] or first)
        step = int(match[3] or 1)
        found += range(first, last + 1, step)
    return found


def unlisted_jobs(job_id: str) -> str:
    """The id of the row that stands for array jobs which an answer left out."""
    return f"{job_id.partition('_')[0]}_*"
