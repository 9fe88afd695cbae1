"""What Slurm's commands print, read.

Plain text with a format of our own choosing: every version of Slurm has it, while the fields of `--json` change from
one to the next, and it is there only where the plugin was built.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from gpuyard.domain.jobconfig import JobStatus

QUEUE_FORMAT = "%i|%T|%S|%N|%k|%r"
ACCOUNT_FORMAT = "JobID,State,Start,End,ExitCode,NodeList"
USAGE_FORMAT = "JobID,End,ElapsedRaw,MaxRSS"
HARDWARE_FORMAT = "%P|%D|%c|%m|%G|%t|%l"
NODES_FORMAT = "%N|%t"
PENDING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD",
                      "SPECIAL_EXIT"})  # fmt: skip
_RUNNING = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"})
ENDS: Mapping[str, str] = {
    "COMPLETED": "", "FAILED": "", "TIMEOUT": "timed_out", "DEADLINE": "timed_out", "CANCELLED": "cancelled",
    "NODE_FAIL": "node_lost", "BOOT_FAIL": "node_lost", "PREEMPTED": "preempted", "REVOKED": "preempted",
    "OUT_OF_MEMORY": "out_of_memory",
}  # fmt: skip
"""By Slurm's word for how a job ended, ours."""
_REASONS: Mapping[str, str] = {
    "Priority": "others come before it", "Resources": "what it needs is in use",
    "JobHeldUser": "it is held; `scontrol release` lets it go", "JobHeldAdmin": "an administrator holds it",
    "PartitionDown": "the partition is down", "PartitionTimeLimit": "it asks for more time than the partition allows",
    "PartitionNodeLimit": "it asks for more nodes than the partition allows", "BeginTime": "it starts later",
    "ReqNodeNotAvail": "the nodes it needs are not available", "Dependency": "it waits for another job",
    "QOSMaxJobsPerUserLimit": "its user runs as many jobs as the QOS allows",
    "AssocGrpGRES": "its account uses as many GPUs as it may", "Licenses": "it waits for a licence",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """A job as Slurm sees it. Times are UTC seconds; `reason` is why it waits, in Slurm's word;
    `output` the file it writes to, where that was asked."""

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
        """Its place in its array; empty for one that is in none."""
        return self.job_id.partition("_")[2]

    @property
    def order(self) -> tuple[int, ...]:
        """Sorts jobs by when they were submitted."""
        return tuple(int(part) for part in self.job_id.split("_"))

    @property
    def status(self) -> JobStatus:
        """PENDING, RUNNING, or how it ended as far as Slurm knows; UNKNOWN for a word of another version."""
        if self.state in PENDING:
            return JobStatus.PENDING
        if self.state in _RUNNING:
            return JobStatus.RUNNING
        if self.state not in ENDS:
            return JobStatus.UNKNOWN
        return JobStatus.COMPLETED if self.state == "COMPLETED" else JobStatus.FAILED


@dataclass(frozen=True, slots=True)
class Hardware:
    """Nodes alike of one partition. `up` counts those that can be used."""

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


def read_queue(text: str) -> list[Row]:
    """What `squeue -o QUEUE_FORMAT` said; lines that make no sense are skipped."""
    rows: list[Row] = []
    for line in text.splitlines():
        fields = line.split("|", 5)
        if len(fields) == 6:
            job_id, state, start, nodes, comment, reason = (field.strip() for field in fields)
            began = _time(start) if state not in PENDING else None
            rows.append(Row(job_id, state, began, None, nodes, comment, reason if reason != "None" else ""))
    return rows


def read_accounts(text: str) -> list[Row]:
    """What `sacct -n -P -X -o ACCOUNT_FORMAT` said."""
    rows: list[Row] = []
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) == 6:
            job_id, state, start, end, code, nodes = fields
            left, signal = _exit(code)
            row = Row(job_id, state.split(" ")[0], _time(start), _time(end), nodes, "", "", left, signal)
            rows += [replace(row, job_id=name) for name in _each(job_id)]
    return rows


def read_job(text: str) -> Row | None:
    """What `scontrol show job -o` said of one job; None for nothing."""
    fields = dict(re.findall(r"(\w+)=(\S*)", text))
    if "JobId" not in fields or "JobState" not in fields:
        return None
    left, signal = _exit(fields.get("ExitCode", ""))
    began, done = _time(fields.get("StartTime", "")), _time(fields.get("EndTime", ""))
    nodes, reason = fields.get("NodeList", ""), fields.get("Reason", "")
    output = re.search(r" StdOut=(.*?)(?: \w+=|$)", text.strip())
    return Row(fields["JobId"], fields["JobState"], began, done, nodes, "", reason, left, signal,
               output[1].strip() if output else "")  # fmt: skip


def read_usage(text: str) -> dict[str, float] | None:
    """What `sacct -n -P -o USAGE_FORMAT` said of one job and its steps; None while one of them has no end."""
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == 3]
    if not rows or any(_time(end) is None for _, end, _, _ in rows):
        return None
    sizes = [size for *_, memory in rows if (size := _bytes(memory)) is not None]
    found = {"elapsed_s": float(rows[0][2])} if rows[0][2].isdigit() else {}
    return {**found, "max_rss_bytes": max(sizes)} if sizes else found


def _bytes(text: str) -> float | None:
    match = re.fullmatch(r"([\d.]+)([KMGT]?)", text)
    return float(match[1]) * 1024 ** " KMGT".index(match[2] or " ") if match else None


def read_hardware(text: str) -> list[Hardware]:
    """What `sinfo -o HARDWARE_FORMAT` said: one entry for each partition and kind of node."""
    found: dict[tuple[str, int, float, str, int], Hardware] = {}
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) != 7 or not fields[1].isdigit():
            continue
        partition, count, cpus, memory, gres, state, limit = fields
        gpu, gpus = read_gres(gres)
        name, up = partition.rstrip("*"), _usable(state)
        memory_gb = float(memory.rstrip("+") or 0) / 1024
        key = (name, int(cpus.rstrip("+")), memory_gb, gpu, gpus)
        old = found.get(key)
        nodes, able = int(count) + (old.nodes if old else 0), int(count) * up + (old.up if old else 0)
        why_down = "" if able else f"all its nodes are {state.rstrip('*$~#%@^-')}"
        found[key] = Hardware(name, nodes, able, key[1], memory_gb, gpu, gpus, partition.endswith("*"),
                              _duration(limit), why_down)  # fmt: skip
    return list(found.values())


def read_usable(text: str) -> set[str]:
    """The nodes that can be used, from `sinfo -N -o NODES_FORMAT`, where one stands once for each of its partitions."""
    rows = (line.partition("|") for line in text.splitlines())
    return {name for name, _, state in rows if state and _usable(state)}


def named(found: list[Hardware]) -> dict[str, Hardware]:
    """Each under a name that says what it is: the partition and its GPUs, and more only where that is not enough."""
    short = [f"{item.partition}/{item.gpu or 'gpu'}" if item.gpus else item.partition for item in found]
    long = [f"{name}x{item.gpus}-{item.cpus}c-{item.memory_gb:.0f}g" for name, item in zip(short, found, strict=True)]
    names = [name if short.count(name) == 1 else more for name, more in zip(short, long, strict=True)]
    return dict(zip(names, found, strict=True))


def read_gres(text: str) -> tuple[str, int]:
    """`gpu:a100:2(S:0-1),tmp:1` as the type and number of GPUs: `("a100", 2)`."""
    total, kinds = 0, set[str]()
    for item in re.sub(r"\([^)]*\)", "", text).split(","):
        words = item.split(":")
        if words[0] == "gpu" and words[-1].isdigit():
            total += int(words[-1])
            kinds.update(words[1:-1])
    return (kinds.pop() if len(kinds) == 1 else "", total)


def say_reason(word: str) -> str:
    """Slurm's word for why a job waits, with what it means."""
    meaning = _REASONS.get(word.split(",")[0].strip("()"))
    return f"{word}: {meaning}" if meaning else word


def refused(said: str) -> tuple[str, bool]:
    """What `sbatch` said against a job, in one line; and whether it is for want of resources."""
    lines = [line.partition("error: ")[2] or line for line in said.strip().splitlines() if line.strip()]
    text = lines[-1].removeprefix("Batch job submission failed: ") if lines else "sbatch failed"
    return text, any(re.search(pattern, said) for pattern in _NO_SUCH_RESOURCES)


_NO_SUCH_RESOURCES = (
    r"MaxSubmit|job submit limit", r"node configuration is not available", r"More processors requested",
    r"Invalid generic resource", r"Node count specification invalid", r"Memory specification can not be satisfied",
    r"Requested nodes are busy", r"[Tt]oo many nodes",
)  # fmt: skip


def lost_way(said: str) -> bool:
    """True when Slurm itself could not be reached, so that nobody knows what became of the call."""
    return any(re.search(pattern, said) for pattern in _AWAY)


_AWAY = (
    r"Unable to contact slurm controller", r"Connection refused", r"timed out", r"Communication connection failure",
    r"Zero Bytes were transmitted", r"temporarily unable|Resource temporarily unavailable",
)  # fmt: skip


def hosts(nodes: str) -> str:
    """The nodes of a row as people read them; Slurm says `(null)` or `None assigned` for none."""
    return "" if nodes in ("(null)", "None assigned", "None") else nodes


def _usable(state: str) -> bool:
    return not re.match(r"(down|drain|drng|fail|maint|unk|boot|inval|not_resp|no_respond|power_down)|.*\*$", state)


def _duration(text: str) -> float | None:
    """`1-02:03:04` in seconds; None for `infinite`."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60.0 + seconds


def is_job(name: str) -> bool:
    """Whether it is a job as Slurm names them: `12`, or `12_3` for the third of an array."""
    return re.fullmatch(r"\d+(_\d+)?", name) is not None


def elements(listed: str) -> list[int]:
    """The indices in `0-2,7,8-12:2%4`, as Slurm writes what has not begun of an array; odd ones are skipped."""
    found: list[int] = []
    for part in listed.partition("%")[0].split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part)
        if match:
            found += range(int(match[1]), int(match[2] or match[1]) + 1, int(match[3] or 1))
    return found


def others(job_id: str) -> str:
    """The name of a row that stands for those of the job's array that an answer has no room for."""
    return f"{job_id.partition('_')[0]}_*"


def _each(job_id: str) -> list[str]:
    """`12_[3-4]` as `12_3` and `12_4`."""
    number, _, rest = job_id.partition("_[")
    return [f"{number}_{index}" for index in elements(rest.rstrip("]"))] if rest else [job_id]


def _exit(text: str) -> tuple[int | None, int | None]:
    match = re.fullmatch(r"(\d+):(\d+)", text)
    return (int(match[1]), int(match[2]) or None) if match else (None, None)


def _time(text: str) -> float | None:
    """Seconds since the epoch, which `SLURM_TIME_FORMAT=%s` asks for: no time zone can be mistaken then."""
    try:
        return float(text) if text.isdigit() else datetime.fromisoformat(text).timestamp()
    except ValueError:  # Unknown, N/A, None
        return None
