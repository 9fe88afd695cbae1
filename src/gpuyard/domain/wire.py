"""Messages between server and agent; `wire_frames.py` puts them into frames.

Commands are idempotent by attempt id. Reports are numbered per agent and kept until the
server acknowledges them, which it does only after its commit. An agent refuses a
command with an older epoch than it has seen.

The agent sends heartbeats, and the server answers each. A side that receives nothing
for `SILENT_BEATS` beats treats the link as dead, because a suspended process keeps its
connections open.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gpuyard.domain.artifacts import ArtifactOrder, ArtifactsSaved
from gpuyard.domain.datasets import DatasetMount
from gpuyard.domain.reasons import Reason
from gpuyard.domain.wire_logs import FindLines as FindLines
from gpuyard.domain.wire_logs import LinesFound as LinesFound
from gpuyard.domain.wire_logs import LogPart as LogPart
from gpuyard.domain.wire_logs import ReadLog as ReadLog
from gpuyard.domain.wire_transfers import MAX_FETCHED as MAX_FETCHED
from gpuyard.domain.wire_transfers import BlobPart as BlobPart
from gpuyard.domain.wire_transfers import BlobStored as BlobStored
from gpuyard.domain.wire_transfers import ContentPart as ContentPart
from gpuyard.domain.wire_transfers import FetchBlob as FetchBlob
from gpuyard.domain.wire_transfers import FetchContents as FetchContents
from gpuyard.domain.wire_transfers import ItemDone as ItemDone
from gpuyard.domain.wire_transfers import ItemGiven as ItemGiven
from gpuyard.domain.wire_transfers import JoinStream as JoinStream
from gpuyard.domain.wire_transfers import OpenStream as OpenStream
from gpuyard.domain.wire_transfers import StoreBlob as StoreBlob
from gpuyard.domain.wire_transfers import TakeItem as TakeItem
from gpuyard.domain.wire_types import (
    Amount,
    AttemptId,
    Capability,
    Count,
    DiskStatus,
    Duration,
    Facts,
    Limits,
    Problem,
    SeriesPoint,
    Sha256,
    Time,
    Whole,
    Word,
)

SILENT_BEATS = 5
# As the first word of a command: the node runs the script that standard input names
# (see `node/worker.py`).
SCRIPT = "gpuyard:script"
# In the usage of an attempt: how busy its GPUs were on average, from 0 to 1.
GPU_UTILIZATION = "gpu_utilization"
# And the most memory in MB that was in use on one of its GPUs.
GPU_MEMORY_MB = "gpu_memory_mb"


class _Message(msgspec.Struct, frozen=True, omit_defaults=True):
    pass


class Beat(_Message, frozen=True, tag="Beat"):
    """A heartbeat of the agent, or the server's answer to it."""


# --- agent to server ---


class GpuStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """A GPU as the agent sees it; memory in MB.

    `state` is `idle`, or says why it gets no work; `problem` gives the details.
    `power_limited`: it runs at its power limit. `hardware_slowed`: its hardware slows
    it down, for want of power or for heat. An agent of an older version does not tell
    them apart.
    """

    uuid: Word
    index: Whole
    name: Word
    memory_mb: Count
    compute_capability: Capability = ""
    driver: Word = ""
    free_mb: Whole = 0
    temperature_c: Whole | None = None
    utilization: Amount | None = None
    problem: Problem | None = None
    state: Word = "idle"
    power_limited: bool = False
    hardware_slowed: bool = False


GpuStatuses = Annotated[list[GpuStatus], Meta(max_length=1024)]


class HeldAttempt(msgspec.Struct, frozen=True, omit_defaults=True):
    """An attempt that the agent holds: running, or ended and not yet forgotten.

    `pid` is 0 if there is none. `ran_s`: for how many seconds it has run; None if it is
    not running.
    """

    attempt_id: str
    token: Count
    state: str
    pid: Count = 0
    ran_s: Duration | None = None


class Hello(_Message, frozen=True, tag="Hello"):
    """The first message of a link: the agent, its host, and the attempts on it.

    `separation` says how jobs are kept apart (`domain/separation.py`). `streams`: it
    knows OpenStream; `stdin_streams`: also to standard input. `fetches`, `datasets`,
    `packages`: it has these of jobs; `artifacts`: it saves those of jobs;
    `finds_lines`: it knows FindLines. An agent of an older version does not. `process`:
    a word that this agent's process has made up, so that its own next link is told from
    another one's.
    """

    node_id: Word
    name: Word
    boot_id: Word
    cpus: Count
    memory_gb: Annotated[float, Meta(ge=0.0, le=1e9)]
    gpus: GpuStatuses = []
    attempts: list[HeldAttempt] = []
    epoch: Count = 0
    version: Word = ""
    limits: Limits = {}
    problem: Problem | None = None
    separation: Word = ""
    streams: bool = False
    stdin_streams: bool = False
    fetches: bool = False
    datasets: bool = False
    packages: bool = False
    artifacts: bool = False
    finds_lines: bool = False
    process: Annotated[str, Meta(max_length=64)] = ""


class GpusSeen(_Message, frozen=True, tag="GpusSeen"):
    """The GPUs now on the host; sent after a change, and for current figures. Now and
    then with what was found on the disk.
    """

    gpus: GpuStatuses
    problem: Problem | None = None
    disk: DiskStatus | None = None


class Started(_Message, frozen=True, tag="Started"):
    """The process runs. `limits` says how each limit is enforced; `facts` with what it
    runs (`node/run_facts.py`), of an attempt that has a record.
    """

    attempt_id: str
    at: Time
    pid: Count
    limits: Limits = {}
    facts: Facts = {}


class ProgressSeen(_Message, frozen=True, tag="ProgressSeen"):
    """New output of an attempt; `progress` is the whole latest reading, `points` are
    new since the last report. `no_gpu` are the words that say that the program found
    no GPU, in each report from then on; `not_finite` those about a loss that is no
    number.
    """

    attempt_id: str
    progress: dict[str, Any]
    points: list[SeriesPoint] = []
    no_gpu: str | None = None
    not_finite: str | None = None


class UsageSeen(_Message, frozen=True, tag="UsageSeen"):
    """What the attempt uses now: processors, memory, its GPUs.

    `log_limit_gb`: its log has reached this limit, so that only its end is kept.
    """

    attempt_id: str
    points: list[SeriesPoint] = []
    log_limit_gb: Amount | None = None


class CheckpointSaved(_Message, frozen=True, tag="CheckpointSaved"):
    """A complete checkpoint, copied into the blob store under its SHA-256."""

    attempt_id: str
    path: str
    sha256: Sha256
    size: Whole
    at: Time
    step: Whole | None = None
    directory: bool = False


class Ended(_Message, frozen=True, tag="Ended"):
    """The attempt has ended. `reason` is empty for a plain exit; `stopped` is why
    gpuyard stopped it, if it did.

    `limits` says how each limit was enforced; `prefetched_next` is the attempt
    that now has its place. `ran_s`: for how many seconds it ran, by the boot clock of
    the node; None if that is not known. `facts`: see Started.
    """

    attempt_id: str
    at: Time
    started_at: Time | None
    exit_code: Whole | None = None
    signal: Whole | None = None
    reason: str = ""
    stopped: str = ""
    message: str = ""
    usage: dict[str, Amount] = {}
    limits: Limits = {}
    prefetched_next: str = msgspec.field(default="", name="successor")
    ran_s: Duration | None = None
    facts: Facts = {}


class InterruptionSeen(_Message, frozen=True, tag="InterruptionSeen"):
    """The cloud takes the machine back at this time: it is rented at a spot price."""

    at: Time


class NumberedReport(_Message, frozen=True, tag="Report"):
    """A numbered message, repeated after a broken link until acknowledged."""

    seq: Count
    body: (
        Started
        | ProgressSeen
        | UsageSeen
        | CheckpointSaved
        | ArtifactsSaved
        | Ended
        | GpusSeen
        | InterruptionSeen
    )


class Found(_Message, frozen=True, tag="Found"):
    """Answer to Find: the attempt's state on this node, or `absent`."""

    request: Whole
    attempt_id: str
    state: str


# --- server to agent ---


class Refused(_Message, frozen=True, tag="Refused"):
    """The server does not serve this connection, and why, for people. `removed`: the
    machine is no longer part of the instance, so its attempts are to end.
    """

    reason: str
    removed: bool = False


class Welcome(_Message, frozen=True, tag="Welcome"):
    """Answer to Hello: the server's epoch, the last report that it has committed, and
    the interval of heartbeats (0: none).
    """

    epoch: int
    acknowledged: int = 0
    heartbeat_s: float = 0.0


class StartAttempt(_Message, frozen=True, tag="Start"):
    """Run this attempt. A repetition with the same attempt id changes nothing.

    Attempts with equal `prefetch_group` can take each other's place; one that is
    `prefetched` waits until another of them ends. `shares_gpus`: others may use its
    GPUs, or it may sleep beside them; the server decides who may use them when.
    `workspace`: the key of its workspace (`domain/workspaces.py`). `secrets`: more
    variables, whose values the agent keeps to itself. `project`: that of the job, which
    may choose the account that it runs under. `user`: who submitted it, if the server
    knows that; which an agent may take as the account. `carried_environment`: the
    digest of the environment that it gets in place of the agent's. `code`: the digest
    of the code that it runs, should that of `workdir` have changed. `log_limit_gb`: how
    much of its output is kept, if not as much as the node's settings say.
    `interactive`: its standard input stays open for streams to it.
    """

    attempt_id: AttemptId
    token: int
    epoch: int
    job_id: str
    command: list[str]
    environment: dict[str, str]
    workdir: str | None = None
    gpu_uuids: list[str] = []
    cpus: float | None = None
    memory_gb: float | None = None
    timeout_s: float | None = None
    max_silence_s: float | None = None
    stdin: bytes | None = None
    checkpoint_path: str | None = None
    checkpoint_signal: str | None = None
    checkpoint_every_s: float | None = None
    grace_s: float = 10.0
    resume_sha256: str | None = None
    resume_name: str | None = None
    resume_directory: bool = False
    resume_args: list[str] = []
    prefetch_group: str = msgspec.field(default="", name="window")
    prefetched: bool = msgspec.field(default=False, name="ahead")
    shares_gpus: bool = False
    workspace: str | None = None
    secrets: dict[str, str] = {}
    project: str = ""
    user: str = ""
    carried_environment: str = ""
    code: str = ""
    log_limit_gb: float | None = None
    interactive: bool = False
    datasets: list[DatasetMount] = []
    packages: str = ""  # a digest
    artifacts: ArtifactOrder | None = None


class StopAttempt(_Message, frozen=True, tag="Stop"):
    """Stop this attempt for this reason (`cancelled`, `preempted`): with the checkpoint
    signal if wanted, grace, TERM, KILL.

    `revoked` withdraws a prefetched attempt; one that has started runs on.
    """

    attempt_id: AttemptId
    epoch: int
    reason: str = Reason.CANCELLED
    checkpoint: bool = False


class Acknowledge(_Message, frozen=True, tag="Acknowledge"):
    """Reports up to `seq` are committed."""

    seq: int


class Forget(_Message, frozen=True, tag="Forget"):
    """The ledger has the ends of these attempts: the agent may drop their records, but
    not their logs.

    With `output`, the ledger has forgotten them: their logs and own folders go too.
    """

    attempt_ids: list[AttemptId]
    output: bool = False


class Find(_Message, frozen=True, tag="Find"):
    """Ask whether the agent holds this attempt."""

    request: int
    attempt_id: AttemptId


class Release(_Message, frozen=True, tag="Release"):
    """Let these GPUs out of quarantine, and forget how often they failed."""

    gpu_uuids: list[str]


class Leave(_Message, frozen=True, tag="Leave"):
    """End the agent and its keeper. Running jobs go on, and the next agent adopts
    them.
    """


FromAgent = (
    Hello
    | NumberedReport
    | LogPart
    | LinesFound
    | Found
    | JoinStream
    | FetchContents
    | StoreBlob
    | BlobPart
    | FetchBlob
    | TakeItem
    | Beat
)
ToAgent = (
    Welcome
    | StartAttempt
    | StopAttempt
    | Acknowledge
    | Forget
    | ReadLog
    | FindLines
    | Find
    | OpenStream
    | ContentPart
    | BlobStored
    | ItemGiven
    | Refused
    | Release
    | Leave
    | Beat
)
