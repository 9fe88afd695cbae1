"""What `slurmrestd` answers, read. What lacks a field that is needed is skipped; nothing else is taken for granted."""

import re
from collections.abc import Iterable
from typing import Any, cast

from gpuyard.providers.slurm.text import PENDING, Hardware, Row, elements, others, read_gres

Document = dict[str, Any]
_UNUSABLE = frozenset({"DOWN", "UNKNOWN", "ERROR", "FUTURE", "DRAIN", "NOT_RESPONDING", "FAIL", "MAINTENANCE",
                       "POWERING_DOWN"})  # fmt: skip
# Of slurmrestd's own doing, and not Slurm's: a request that it did not understand.
_NOT_UNDERSTOOD = range(9000, 10000)


def read_versions(document: Document) -> set[str]:
    """The versions of Slurm's interface in an OpenAPI document."""
    found = (re.match(r"/slurm/(v[\d.]+)/jobs", path) for path in _dict(document.get("paths")))
    return {match[1] for match in found if match}


def read_errors(document: Document) -> str:
    """What an answer says against the question, in one line; empty for nothing."""
    said = [str(item.get("description") or item.get("error") or "error") for item in _dicts(document.get("errors"))]
    return "; ".join(dict.fromkeys(said))


def is_refusal(document: Document) -> bool:
    """Whether it was Slurm, or slurmrestd on reading, that said no: then nothing has been submitted for certain."""
    numbers = [_number(item.get("error_number")) or _number(item.get("error_code"))
               for item in _dicts(document.get("errors"))]  # fmt: skip
    return any(number is not None and (2000 <= number < 3000 or number in _NOT_UNDERSTOOD) for number in numbers)


def read_jobs(document: Document, user: str) -> list[Row]:
    """The jobs of a user. Those of an array that have not begun are one entry there, and a row each here."""
    mine = (item for item in _dicts(document.get("jobs")) if item.get("user_name") == user)
    return [row for item in mine for row in _rows(item)]


def _rows(item: Document) -> Iterable[Row]:
    job_id, state = _number(item.get("job_id")), item.get("job_state")
    if not job_id or not isinstance(state, str) or not state:
        return
    waits, code = state in PENDING, _number(item.get("exit_code")) or 0
    reason, array = str(item.get("state_reason") or ""), _number(item.get("array_job_id"))
    for name in _elements(item, array) if array else [str(job_id)]:
        yield Row(
            name, state, None if waits else _number(item.get("start_time")) or None,
            None if waits else _number(item.get("end_time")) or None, str(item.get("nodes") or ""),
            str(item.get("comment") or ""), "" if reason == "None" else reason, code >> 8, (code & 127) or None,
        )  # fmt: skip


def _elements(item: Document, array: int) -> list[str]:
    index = _number(item.get("array_task_id"))
    if index is not None:
        return [f"{array}_{index}"]
    listed = str(item.get("array_task_string") or "")
    cut = [others(str(array))] if "..." in listed else []
    return [*(f"{array}_{index}" for index in elements(listed)), *cut]


def read_hardware(nodes: Document, partitions: Document, only: str | None) -> list[Hardware]:
    """One entry for each partition and kind of node, as `text.read_hardware` has it."""
    about = {str(item.get("name")): item for item in _dicts(partitions.get("partitions"))}
    found: dict[tuple[str, int, float, str, int], Hardware] = {}
    for node in _dicts(nodes.get("nodes")):
        cpus, memory = _number(node.get("cpus")), _number(node.get("real_memory"))
        if cpus is None or memory is None:
            continue
        gpu, gpus = read_gres(str(node.get("gres") or ""))
        for name in _strings(node.get("partitions")):
            if name not in about or (only and name not in only.split(",")):
                continue
            key = (name, cpus, memory / 1024, gpu, gpus)
            old = found.get(key)
            up = (old.up if old else 0) + _can_be_used(node)
            limit = _number(about[name].get("max_time_limit")) or 0
            found[key] = Hardware(
                name, (old.nodes if old else 0) + 1, up, cpus, key[2], gpu, gpus,
                "default" in _strings(about[name].get("flags")), limit * 60.0 if limit > 0 else None,
                "" if up else f"all its nodes are {_say_state(node)}",
            )  # fmt: skip
    return list(found.values())


def read_usable(nodes: Document, only: str | None) -> set[str]:
    """The names of the nodes that can be used."""
    wanted = set(only.split(",")) if only else None
    return {str(node["name"]) for node in _dicts(nodes.get("nodes")) if node.get("name") and _can_be_used(node)
            and (wanted is None or wanted.intersection(_strings(node.get("partitions"))))}  # fmt: skip


def _can_be_used(node: Document) -> bool:
    words = {str(node.get("state") or "unknown"), *_strings(node.get("state_flags"))}
    return not _UNUSABLE.intersection(word.upper() for word in words)


def _say_state(node: Document) -> str:
    flags = [word.lower() for word in _strings(node.get("state_flags")) if word.upper() in _UNUSABLE]
    return flags[0] if flags else str(node.get("state") or "unknown")


def _dict(value: object) -> Document:
    return cast("Document", value) if isinstance(value, dict) else {}


def _dicts(value: object) -> list[Document]:
    return [_dict(item) for item in cast("list[object]", value) if item] if isinstance(value, list) else []


def _strings(value: object) -> list[str]:
    return [str(item) for item in cast("list[object]", value)] if isinstance(value, list) else []


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
