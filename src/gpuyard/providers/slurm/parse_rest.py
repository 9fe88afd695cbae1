"""Parses the answers of `slurmrestd`.

Entries that lack a needed field are skipped. Any other field may be missing.
"""

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast

from gpuyard.providers.slurm.records import (
    PENDING,
    Hardware,
    SlurmRow,
    array_indices,
    read_gres,
    unlisted_jobs,
)

Document = dict[str, Any]
_UNUSABLE = frozenset(
    {
        "DOWN",
        "UNKNOWN",
        "ERROR",
        "FUTURE",
        "DRAIN",
        "NOT_RESPONDING",
        "FAIL",
        "MAINTENANCE",
        "POWERING_DOWN",
    }
)
# Error numbers of Slurm, and those of slurmrestd for a request it does not understand.
_SLURM_ERRORS = range(2000, 3000)
_NOT_UNDERSTOOD = range(9000, 10000)


def read_versions(document: Document) -> set[str]:
    """The versions of Slurm's API in an OpenAPI document."""
    paths = _dict(document.get("paths"))
    matches = [re.match(r"/slurm/(v[\d.]+)/jobs", path) for path in paths]
    return {match[1] for match in matches if match}


def read_errors(document: Document) -> str:
    """The errors of an answer in one line, each once; empty when there are none."""
    errors = [
        str(item.get("description") or item.get("error") or "error")
        for item in _dicts(document.get("errors"))
    ]
    return "; ".join(dict.fromkeys(errors))


def is_refusal(document: Document) -> bool:
    """Whether Slurm refused the request, or slurmrestd did not understand it.

    Then it is certain that nothing was submitted.
    """
    for item in _dicts(document.get("errors")):
        number = _number(item.get("error_number")) or _number(item.get("error_code"))
        if number in _SLURM_ERRORS or number in _NOT_UNDERSTOOD:
            return True
    return False


def read_jobs(document: Document, user: str) -> list[SlurmRow]:
    """The jobs of a user.

    slurmrestd lists the pending jobs of an array as one entry; here each has a row.
    """
    rows: list[SlurmRow] = []
    for item in _dicts(document.get("jobs")):
        if item.get("user_name") == user:
            rows += _rows(item)
    return rows


def _rows(item: Document) -> Iterable[SlurmRow]:
    job_id = _number(item.get("job_id"))
    state = item.get("job_state")
    if not job_id or not isinstance(state, str) or not state:
        return
    started_at = None
    ended_at = None
    if state not in PENDING:
        started_at = _number(item.get("start_time")) or None
        ended_at = _number(item.get("end_time")) or None
    # As from wait(2): the exit code above the signal.
    wait_status = _number(item.get("exit_code")) or 0
    reason = str(item.get("state_reason") or "")
    array = _number(item.get("array_job_id"))
    for one_id in _array_jobs(item, array) if array else [str(job_id)]:
        yield SlurmRow(
            one_id,
            state,
            started_at=started_at,
            ended_at=ended_at,
            nodes=str(item.get("nodes") or ""),
            attempt_id=str(item.get("comment") or ""),
            reason="" if reason == "None" else reason,
            exit_code=wait_status >> 8,
            signal=(wait_status & 127) or None,
        )


def _array_jobs(item: Document, array: int) -> list[str]:
    """The ids of the array's jobs in this entry."""
    index = _number(item.get("array_task_id"))
    if index is not None:
        return [f"{array}_{index}"]
    listed = str(item.get("array_task_string") or "")
    job_ids = [f"{array}_{index}" for index in array_indices(listed)]
    if "..." in listed:
        job_ids.append(unlisted_jobs(str(array)))
    return job_ids


def read_hardware(
    nodes: Document, partitions: Document, only: str | None
) -> list[Hardware]:
    """One entry for each partition and kind of node.

    `only` names the partitions to read, separated by commas; None means all.
    """
    known_partitions = {
        str(item.get("name")): item for item in _dicts(partitions.get("partitions"))
    }
    wanted = set(only.split(",")) if only else known_partitions.keys()
    found: dict[tuple[str, int, float, str, int], Hardware] = {}
    for node in _dicts(nodes.get("nodes")):
        for name in _strings(node.get("partitions")):
            if name not in wanted or name not in known_partitions:
                continue
            item = _hardware(node, name, known_partitions[name])
            if item is None:
                continue
            key = (name, item.cpus, item.memory_gb, item.gpu, item.gpus)
            known = found.get(key)
            found[key] = item if known is None else _add_node(known, item)
    return list(found.values())


def _hardware(node: Document, name: str, partition: Document) -> Hardware | None:
    """One node in one of its partitions; None when its size is missing."""
    cpus = _number(node.get("cpus"))
    memory = _number(node.get("real_memory"))
    if cpus is None or memory is None:
        return None
    gpu, gpus = read_gres(str(node.get("gres") or ""))
    limit = _number(partition.get("max_time_limit")) or 0
    is_up = _is_usable(node)
    return Hardware(
        name,
        1,
        int(is_up),
        cpus,
        memory / 1024,
        gpu,
        gpus,
        default="default" in _strings(partition.get("flags")),
        limit_s=limit * 60.0 if limit > 0 else None,
        why_down="" if is_up else f"all its nodes are {_state(node)}",
    )


def _add_node(known: Hardware, node: Hardware) -> Hardware:
    up = known.up + node.up
    why_down = "" if up else node.why_down
    return replace(node, nodes=known.nodes + 1, up=up, why_down=why_down)


def read_usable_nodes(nodes: Document, only: str | None) -> set[str]:
    """The names of the usable nodes, in the partitions `only` unless that is None."""
    wanted = set(only.split(",")) if only else None
    names = set[str]()
    for node in _dicts(nodes.get("nodes")):
        partitions = _strings(node.get("partitions"))
        is_wanted = wanted is None or not wanted.isdisjoint(partitions)
        if is_wanted and node.get("name") and _is_usable(node):
            names.add(str(node["name"]))
    return names


def _is_usable(node: Document) -> bool:
    words = {str(node.get("state") or "unknown"), *_strings(node.get("state_flags"))}
    return not _UNUSABLE.intersection(word.upper() for word in words)


def _state(node: Document) -> str:
    """The flag that makes the node unusable, or else its state."""
    for word in _strings(node.get("state_flags")):
        if word.upper() in _UNUSABLE:
            return word.lower()
    return str(node.get("state") or "unknown")


# --- fields, any of which may be missing ---


def _dict(value: object) -> Document:
    return cast("Document", value) if isinstance(value, dict) else {}


def _dicts(value: object) -> list[Document]:
    if not isinstance(value, list):
        return []
    return [_dict(item) for item in cast("list[object]", value) if item]


def _strings(value: object) -> list[str]:
    if not isinstance(value, list):
        return []
    return [str(item) for item in cast("list[object]", value)]


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
