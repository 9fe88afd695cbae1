"""Parses what Slurm's commands print.

The output is plain text in a format we choose. Every version of Slurm can print it. The
fields of `--json` change between versions, and `--json` needs an optional plugin.
"""

import re
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from gpuyard.providers.slurm.records import (
    PENDING,
    Hardware,
    SlurmRow,
    array_indices,
    read_gres,
)

QUEUE_FORMAT = "%i|%T|%S|%N|%k|%r"
ACCOUNT_FORMAT = "JobID,State,Start,End,ExitCode,NodeList"
USAGE_FORMAT = "JobID,End,ElapsedRaw,MaxRSS"
HARDWARE_FORMAT = "%P|%D|%c|%m|%G|%t|%l"
NODES_FORMAT = "%N|%t"
# What sbatch prints when the cluster lacks the resources.
_NO_SUCH_RESOURCES = (
    r"MaxSubmit|job submit limit",
    r"node configuration is not available",
    r"More processors requested",
    r"Invalid generic resource",
    r"Node count specification invalid",
    r"Memory specification can not be satisfied",
    r"Requested nodes are busy",
    r"[Tt]oo many nodes",
)
# What Slurm refuses only for now.
_PASSING = (r"MaxSubmit|job submit limit", r"Requested nodes are busy")
# What any command prints when it cannot reach Slurm.
_UNREACHABLE = (
    r"Unable to contact slurm controller",
    r"Connection refused",
    r"timed out",
    r"Communication connection failure",
    r"Zero Bytes were transmitted",
    r"temporarily unable|Resource temporarily unavailable",
)


# --- jobs ---


def read_queue(output: str) -> list[SlurmRow]:
    """The rows of `squeue -o QUEUE_FORMAT`; lines with too few fields are skipped."""
    rows: list[SlurmRow] = []
    for line in output.splitlines():
        fields = [field.strip() for field in line.split("|", 5)]
        if len(fields) != 6:
            continue
        job_id, state, start, nodes, comment, reason = fields
        row = SlurmRow(
            job_id,
            state,
            started_at=None if state in PENDING else _time(start),
            nodes=nodes,
            attempt_id=comment,
            reason="" if reason == "None" else reason,
        )
        rows.append(row)
    return rows


def read_accounting(output: str) -> list[SlurmRow]:
    """The rows of `sacct -n -P -X -o ACCOUNT_FORMAT`."""
    rows: list[SlurmRow] = []
    for line in output.splitlines():
        fields = line.split("|")
        if len(fields) != 6:
            continue
        job_id, state, start, end, code, nodes = fields
        exit_code, signal = _exit(code)
        row = SlurmRow(
            job_id,
            state.split(" ")[0],
            started_at=_time(start),
            ended_at=_time(end),
            nodes=nodes,
            exit_code=exit_code,
            signal=signal,
        )
        rows += [replace(row, job_id=one_id) for one_id in _each_job(job_id)]
    return rows


def read_job(output: str) -> SlurmRow | None:
    """The job in the output of `scontrol show job -o`; None when there is none."""
    fields = dict(re.findall(r"(\w+)=(\S*)", output))
    if "JobId" not in fields or "JobState" not in fields:
        return None
    exit_code, signal = _exit(fields.get("ExitCode", ""))
    output_path = re.search(r" StdOut=(.*?)(?: \w+=|$)", output.strip())
    return SlurmRow(
        fields["JobId"],
        fields["JobState"],
        started_at=_time(fields.get("StartTime", "")),
        ended_at=_time(fields.get("EndTime", "")),
        nodes=fields.get("NodeList", ""),
        reason=fields.get("Reason", ""),
        exit_code=exit_code,
        signal=signal,
        output=output_path[1].strip() if output_path else "",
    )


def read_usage(output: str) -> dict[str, float] | None:
    """The usage of one job and its steps, from `sacct -n -P -o USAGE_FORMAT`.

    None while one of them has no end.
    """
    rows = [line.split("|") for line in output.splitlines() if line.count("|") == 3]
    if not rows or any(_time(end) is None for _, end, _, _ in rows):
        return None
    usage: dict[str, float] = {}
    elapsed = rows[0][2]
    if elapsed.isdigit():
        usage["elapsed_s"] = float(elapsed)
    sizes = [_bytes(memory) for *_, memory in rows]
    known_sizes = [size for size in sizes if size is not None]
    if known_sizes:
        usage["max_rss_bytes"] = max(known_sizes)
    return usage


def _each_job(job_id: str) -> Iterable[str]:
    """`12_[3-4]` as `12_3` and `12_4`."""
    array, _, indices = job_id.partition("_[")
    if not indices:
        return [job_id]
    return [f"{array}_{index}" for index in array_indices(indices.rstrip("]"))]


# --- nodes ---


def read_hardware(output: str) -> list[Hardware]:
    """One entry for each partition and kind of node, from `sinfo -o HARDWARE_FORMAT`.

    `sinfo` prints one line for each state of such nodes.
    """
    found: dict[tuple[str, int, float, str, int], Hardware] = {}
    for line in output.splitlines():
        fields = line.split("|")
        if len(fields) != 7 or not fields[1].isdigit():
            continue
        partition, count, cpus, memory, gres, state, limit = fields
        gpu, gpus = read_gres(gres)
        nodes = int(count)
        up = nodes if _is_usable(state) else 0
        item = Hardware(
            partition.rstrip("*"),
            nodes,
            up,
            int(cpus.rstrip("+")),
            float(memory.rstrip("+") or 0) / 1024,
            gpu,
            gpus,
            default=partition.endswith("*"),
            limit_s=_duration(limit),
        )
        key = (item.partition, item.cpus, item.memory_gb, gpu, gpus)
        known = found.get(key)
        if known is not None:
            item = replace(item, nodes=nodes + known.nodes, up=up + known.up)
        if not item.up:
            why_down = f"all its nodes are {state.rstrip('*$~#%@^-')}"
            item = replace(item, why_down=why_down)
        found[key] = item
    return list(found.values())


def read_usable_nodes(output: str) -> set[str]:
    """The names of the usable nodes, from `sinfo -N -o NODES_FORMAT`.

    `sinfo` prints a node once for each of its partitions.
    """
    rows = (line.partition("|") for line in output.splitlines())
    return {name for name, _, state in rows if state and _is_usable(state)}


def _is_usable(state: str) -> bool:
    return not re.match(
        r"(down|drain|drng|fail|maint|unk|boot|inval|not_resp|no_respond|power_down)|.*\*$",
        state,
    )


# --- errors ---


def read_refusal(error_output: str) -> tuple[str, bool]:
    """The error of `sbatch` in one line, and whether the cluster lacks resources."""
    lines = [
        line.partition("error: ")[2] or line
        for line in error_output.strip().splitlines()
        if line.strip()
    ]
    last = lines[-1] if lines else "sbatch failed"
    text = last.removeprefix("Batch job submission failed: ")
    return text, _matches_any(_NO_SUCH_RESOURCES, error_output)


def may_pass(refusal: str) -> bool:
    """Whether Slurm may accept later what it has refused, without any change."""
    return _matches_any(_PASSING, refusal)


def is_unreachable(error_output: str) -> bool:
    """Whether Slurm could not be reached.

    Then nobody knows whether the call was carried out.
    """
    return _matches_any(_UNREACHABLE, error_output)


def _matches_any(patterns: Iterable[str], text: str) -> bool:
    return any(re.search(pattern, text) for pattern in patterns)


# --- values ---


def _exit(code: str) -> tuple[int | None, int | None]:
    """`1:9` as exit code 1 and signal 9; no signal for `:0`."""
    match = re.fullmatch(r"(\d+):(\d+)", code)
    return (int(match[1]), int(match[2]) or None) if match else (None, None)


def _time(stamp: str) -> float | None:
    """UTC seconds; None for `Unknown`, `N/A` and `None`.

    We set `SLURM_TIME_FORMAT=%s`, which has no time zone that could be mistaken.
    """
    if stamp.isdigit():
        return float(stamp)
    try:
        return datetime.fromisoformat(stamp).timestamp()
    except ValueError:
        return None


def _duration(limit: str) -> float | None:
    """`1-02:03:04` in seconds; None for `infinite`."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", limit)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60.0 + seconds


def _bytes(size: str) -> float | None:
    """`2.5M` in bytes; None for what is no size."""
    match = re.fullmatch(r"([\d.]+)([KMGT]?)", size)
    if match is None:
        return None
    power = " KMGT".index(match[2] or " ")
    return float(match[1]) * 1024**power
