"""Messages between server and agent: typed, msgpack in frames of a 4-byte big-endian length and a body.

Commands are idempotent by attempt id. Reports are numbered per agent and kept until the server acknowledges them,
which it does only after its commit. An agent refuses a command with an older epoch than it has seen.

An agent beats, and the server answers each beat. Whoever hears nothing for `SILENT_BEATS` beats takes the link for
dead, because a process that was stopped keeps its connections open.
"""

import struct
from typing import Any

import msgspec

MAX_FRAME = 64 * 1024 * 1024
SILENT_BEATS = 5
# As the first word of a command: the node asks the model that the second one names what stands on standard input.
ASK = "gpuyard:ask"
# Likewise: the node runs the script that standard input names (see `node/worker.py`).
SCRIPT = "gpuyard:script"
_LENGTH = struct.Struct(">I")


class _Message(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    pass


class Beat(_Message, frozen=True):
    """The sender lives; sent by the agent, and sent back by the server."""


# --- agent to server ---------------------------------------------------------------------------------------------


class Gpu(msgspec.Struct, frozen=True, omit_defaults=True):
    """A GPU as the agent sees it; memory in MB. `state` is `idle`, or why it gets no work, and `problem` says more."""

    uuid: str
    index: int
    name: str
    memory_mb: int
    compute_capability: str = ""
    driver: str = ""
    free_mb: int = 0
    temperature_c: int | None = None
    utilization: float | None = None
    problem: str | None = None
    state: str = "idle"


class Attempt(msgspec.Struct, frozen=True, omit_defaults=True):
    """An attempt the agent still holds: running, or ended and not yet forgotten. `pid` is 0 where there is none."""

    attempt_id: str
    token: int
    state: str
    pid: int = 0


class Hello(_Message, frozen=True):
    """First message of a link: who the agent is, what its host has, which attempts live on it."""

    node_id: str
    name: str
    boot_id: str
    cpus: int
    memory_gb: float
    gpus: list[Gpu] = []
    attempts: list[Attempt] = []
    epoch: int = 0
    version: str = ""
    limits: dict[str, str] = {}
    problem: str | None = None


class GpusSeen(_Message, frozen=True):
    """The GPUs now on the host; sent when discovery finds a change, and for live figures."""

    gpus: list[Gpu]
    problem: str | None = None


class Started(_Message, frozen=True):
    """The process runs. `limits` says how each limit is enforced."""

    attempt_id: str
    at: float
    pid: int
    limits: dict[str, str] = {}


class Point(msgspec.Struct, frozen=True, array_like=True):
    """One value of a metric series: its `n`-th, so that a log read twice gives the same keys."""

    name: str
    n: int
    step: int | None
    value: float
    at: float


class ProgressSeen(_Message, frozen=True):
    """What the output told since the last report; `progress` is the whole latest reading."""

    attempt_id: str
    progress: dict[str, Any]
    points: list[Point] = []


class UsageSeen(_Message, frozen=True):
    """What the attempt uses at the moment: processors, memory, its GPUs."""

    attempt_id: str
    points: list[Point] = []


class CheckpointSaved(_Message, frozen=True):
    """A complete checkpoint, copied into the blob store under its SHA-256."""

    attempt_id: str
    path: str
    sha256: str
    size: int
    at: float
    step: int | None = None
    directory: bool = False


class Ended(_Message, frozen=True):
    """The attempt is over. `reason` is empty for a plain exit; `stopped` is why we ended it, if we did.

    `limits` says how each limit was enforced; `successor` is the attempt from the window that now has its place.
    """

    attempt_id: str
    at: float
    started_at: float | None
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""
    stopped: str = ""
    message: str = ""
    usage: dict[str, float] = {}
    limits: dict[str, str] = {}
    successor: str = ""


class Report(_Message, frozen=True):
    """A numbered message, repeated after a broken link until acknowledged."""

    seq: int
    body: Started | ProgressSeen | UsageSeen | CheckpointSaved | Ended | GpusSeen


class LogPart(_Message, frozen=True):
    """Answer to ReadLog: bytes from `offset` on; `end` is true when no more will ever come."""

    request: int
    offset: int
    data: bytes
    end: bool
    missing: bool = False


class Found(_Message, frozen=True):
    """Answer to Find: the attempt's state on this node, or `absent`."""

    request: int
    attempt_id: str
    state: str


# --- server to agent ---------------------------------------------------------------------------------------------


class Welcome(_Message, frozen=True):
    """Answer to Hello: the server's epoch, the highest report it has committed, how often to beat (0: never)."""

    epoch: int
    acknowledged: int = 0
    heartbeat_s: float = 0.0


class Start(_Message, frozen=True):
    """Run this. Repeated with the same attempt id it changes nothing.

    `window` is equal for attempts that can take each other's place; one sent `ahead` waits until one of them ends.
    `shares_gpus`: others may be on its GPUs, or it may sleep beside them; the server keeps account of who is when.
    `workspace`: the key of its workspace (`domain/workspaces.py`).
    """

    attempt_id: str
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
    window: str = ""
    ahead: bool = False
    shares_gpus: bool = False
    workspace: str | None = None


class Stop(_Message, frozen=True):
    """End this attempt, for this reason (`cancelled`, `preempted`): checkpoint signal if asked, grace, TERM, KILL.

    `revoked` takes back one that was sent ahead; one that has started runs on.
    """

    attempt_id: str
    epoch: int
    reason: str = "cancelled"
    checkpoint: bool = False


class Acknowledge(_Message, frozen=True):
    """Reports up to `seq` are committed."""

    seq: int


class Forget(_Message, frozen=True):
    """These attempts are settled in the ledger; the agent may drop their records (never their logs)."""

    attempt_ids: list[str]


class ReadLog(_Message, frozen=True):
    """Send up to `limit` bytes from `offset` (negative: from `tail_lines` before the end), waiting up to `wait_s`."""

    request: int
    attempt_id: str
    offset: int
    limit: int = 1 << 20
    tail_lines: int = 0
    wait_s: float = 0.0


class Find(_Message, frozen=True):
    """Do you hold this attempt?"""

    request: int
    attempt_id: str


class Release(_Message, frozen=True):
    """Let these GPUs out of quarantine, and forget how often they failed."""

    gpu_uuids: list[str]


class Leave(_Message, frozen=True):
    """End the agent and its keeper; running jobs are left to themselves and adopted by the next agent."""


FromAgent = Hello | Report | LogPart | Found | Beat
ToAgent = Welcome | Start | Stop | Acknowledge | Forget | ReadLog | Find | Release | Leave | Beat

_encoder = msgspec.msgpack.Encoder()
_from_agent: msgspec.msgpack.Decoder[FromAgent] = msgspec.msgpack.Decoder(FromAgent)
_to_agent: msgspec.msgpack.Decoder[ToAgent] = msgspec.msgpack.Decoder(ToAgent)


def encode(message: FromAgent | ToAgent) -> bytes:
    """One frame: length and body."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


def decode_from_agent(body: bytes) -> FromAgent:
    """A body the server received; ValueError when it is not one of ours."""
    return _from_agent.decode(body)


def decode_to_agent(body: bytes) -> ToAgent:
    """A body the agent received; ValueError when it is not one of ours."""
    return _to_agent.decode(body)


def frame_length(header: bytes) -> int:
    """The body length a 4-byte header announces; ValueError when absurd: garbage must not exhaust memory."""
    (length,) = _LENGTH.unpack(header)
    if length > MAX_FRAME:
        raise ValueError(f"a frame of {length} bytes is more than {MAX_FRAME}; the peer does not speak our protocol")
    return int(length)
