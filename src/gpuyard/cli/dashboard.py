"""What `gpuyard top` shows, as plain words: a row for each GPU, and what waits under them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuyard.domain.units import format_duration, format_gb

Item = Mapping[str, Any]
COLUMNS = ("GPU", "STATE", "WORK", "HOW FAR", "TASKS", "MEMORY", "HEAT", "LOAD", "NODE")
SORTS = ("GPU", "STATE", "WORK", "LOAD")
_CELLS = 10


@dataclass(frozen=True, slots=True)
class Seen:
    """What the server said at one moment."""

    gpus: Sequence[Item]
    batches: Sequence[Item]
    waiting: Mapping[str, int]
    at: float


@dataclass(frozen=True, slots=True)
class Row:
    """A GPU: what is shown of it, and what keys act on."""

    uuid: str
    cells: tuple[str, ...]
    state: str
    load: float
    model: str | None
    job_id: str | None


def rows(seen: Seen, *, sort: str = "GPU", only: str = "") -> list[Row]:
    """The GPUs in the order of a column; `only` those with these words somewhere."""
    there = [_row(gpu, seen) for gpu in seen.gpus]
    found = [row for row in there if only.lower() in " ".join(row.cells).lower()]
    place = COLUMNS.index(sort) if sort in COLUMNS else 0
    if sort == "LOAD":
        return sorted(found, key=lambda row: -row.load)
    return found if sort == "GPU" else sorted(found, key=lambda row: row.cells[place])


def _row(gpu: Item, seen: Seen) -> Row:
    load = gpu.get("utilization")
    used = None if gpu.get("free_mb") is None else gpu["memory_mb"] - gpu["free_mb"]
    memory = format_gb(gpu["memory_mb"] / 1024)
    cells = (
        str(gpu["index"]), gpu["state"].upper(), _work(gpu),
        _how_far(gpu, seen.at), "" if gpu.get("tasks_completed") is None else str(gpu["tasks_completed"]),
        memory if used is None else f"{used / 1024:.1f}/{memory}",
        "" if gpu.get("temperature_c") is None else f"{gpu['temperature_c']:g} °C",
        "" if load is None else f"{load:.0%}", gpu.get("node") or "",
    )  # fmt: skip
    return Row(gpu["uuid"], cells, gpu["state"], load or 0.0, gpu.get("model"), gpu.get("job_id"))


def _work(gpu: Item) -> str:
    models = " + ".join(gpu.get("models") or ())
    if models and gpu.get("paired_with"):
        models += f" (paired w/{','.join(map(str, gpu['paired_with']))})"
    return models or gpu.get("script") or gpu.get("problem") or ""


def _how_far(gpu: Item, now: float) -> str:
    """How long idle, how far a boot or a script is, or since when it works."""
    if gpu.get("expected_at"):
        return f"ready in {format_duration(max(gpu['expected_at'] - now, 0))}"
    if gpu.get("idle_s") is not None:
        return f"idle {format_duration(gpu['idle_s'])}"
    words = [bar(gpu["progress"])] if gpu.get("progress") is not None else []
    if gpu.get("eta_s") is not None:
        words.append(f"ETA {format_duration(gpu['eta_s'])}")
    elif gpu.get("since"):
        words.append(f"for {format_duration(max(now - gpu['since'], 0))}")
    return " ".join(words)


def bar(part: float) -> str:
    """A part of one as a bar with its figure."""
    full = min(round(part * _CELLS), _CELLS)
    return f"{'█' * full}{'░' * (_CELLS - full)} {part:4.0%}"


def foot(seen: Seen) -> list[str]:
    """What waits, the mode, and the batches that are under way."""
    live = [batch for batch in seen.batches if batch["ended_at"] is None]
    alone = any(batch["gpu_mode"] == "exclusive" for batch in live)
    mode = "BATCH (exclusive)" if alone else "NORMAL"
    lines = [f"LLM queue: {seen.waiting.get('llm', 0)} waiting | script queue: {seen.waiting.get('script', 0)} waiting"
             f" | mode: {mode}"]  # fmt: skip
    for batch in live:
        done, total = batch["completed"] + batch["failed"], batch["total_items"]
        eta = f" ETA {format_duration(batch['eta_s'])}" if batch["eta_s"] is not None else ""
        failed = f", {batch['failed']} failed" if batch["failed"] else ""
        lines.append(f"{batch['batch_id']}: {bar(done / total)} {done}/{total}{failed} {batch['state']}{eta}")
    return lines
