"""The text of `gpuyard top`: a row for each GPU, and below them what waits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuyard.cli.cloud_lines import machine_lines, pool_lines
from gpuyard.cli.output import telling
from gpuyard.domain.units import format_duration, format_gb

Item = Mapping[str, Any]
COLUMNS = (
    "GPU",
    "STATE",
    "WORK",
    "PROGRESS",
    "TASKS",
    "MEMORY",
    "TEMP",
    "LOAD",
    "NODE",
)
SORTS = ("GPU", "STATE", "WORK", "LOAD")
_CELLS = 10


@dataclass(frozen=True, slots=True)
class Seen:
    """What the server said at one moment."""

    gpus: Sequence[Item]
    jobs: Sequence[Item]
    batches: Sequence[Item]
    waiting: Mapping[str, int]
    at: float
    disk_problems: Sequence[str] = ()
    pools: Sequence[Item] = ()
    machines: Sequence[Item] = ()


@dataclass(frozen=True, slots=True)
class GpuRow:
    """What is shown of one GPU, and what the keys act on."""

    uuid: str
    cells: tuple[str, ...]
    state: str
    load: float
    model: str | None
    job_id: str | None


def rows(seen: Seen, *, sort: str = "GPU", only: str = "") -> list[GpuRow]:
    """The GPUs, and then the running jobs without one, whose cells contain `only`;
    sorted by a column.
    """
    jobs_by_id = {job["id"]: job for job in seen.jobs}
    of_gpus = [
        _gpu_row(gpu, jobs_by_id.get(gpu.get("job_id")), seen.at) for gpu in seen.gpus
    ]
    without_gpu = [_job_row(job, seen.at) for job in seen.jobs if not job["gpus"]]
    shown = [row for row in of_gpus + without_gpu if _contains(row, only)]
    return _sorted(shown, sort)


def _contains(row: GpuRow, text: str) -> bool:
    return text.lower() in " ".join(row.cells).lower()


def _sorted(found: list[GpuRow], column: str) -> list[GpuRow]:
    if column == "LOAD":
        return sorted(found, key=lambda row: -row.load)
    # The server sends them in the order of the GPUs.
    if column == "GPU" or column not in COLUMNS:
        return found
    position = COLUMNS.index(column)
    return sorted(found, key=lambda row: row.cells[position])


def _gpu_row(gpu: Item, job: Item | None, now: float) -> GpuRow:
    """A row for a GPU, and for the job that it runs, if that is known."""
    progress = _how_far(gpu, now)
    if job is not None:
        progress = " ".join([progress, *_step_and_metric(job["progress"])])
    load = gpu.get("utilization")
    tasks = gpu.get("tasks_completed")
    temperature = gpu.get("temperature_c")
    return GpuRow(
        uuid=gpu["uuid"],
        cells=(
            str(gpu["index"]),
            gpu["state"].upper(),
            _work(gpu),
            progress,
            "" if tasks is None else str(tasks),
            _memory(gpu),
            "" if temperature is None else f"{temperature:g} °C",
            "" if load is None else f"{load:.0%}",
            gpu.get("node") or "",
        ),
        state=gpu["state"],
        load=load or 0.0,
        model=gpu.get("model"),
        job_id=gpu.get("job_id"),
    )


def _job_row(job: Item, now: float) -> GpuRow:
    """A row for a job that uses no GPU."""
    words = [*_how_far_of_job(job, now), *_step_and_metric(job["progress"])]
    no_gpu = ("", "", "", "")
    return GpuRow(
        uuid=job["id"],
        cells=(
            "CPU",
            job["state"].upper(),
            job["name"],
            " ".join(words),
            *no_gpu,
            job["node"] or "",
        ),
        state="script_busy",
        load=0.0,
        model=None,
        job_id=job["id"],
    )


def _how_far_of_job(job: Item, now: float) -> list[str]:
    """The part of its steps that is done, and its ETA or how long it has run."""
    progress = job["progress"]
    words: list[str] = []
    if progress["step"] is not None and progress["total"]:
        words.append(bar(progress["step"] / progress["total"]))
    if progress["eta_s"] is not None:
        words.append(f"ETA {format_duration(progress['eta_s'])}")
    elif job["started_at"] is not None:
        words.append(_for_how_long(job["started_at"], now))
    return words


def _for_how_long(since: float, now: float) -> str:
    return f"for {format_duration(max(now - since, 0))}"


def _step_and_metric(progress: Item) -> list[str]:
    """Where a job is whose end is not known, and what its program says of itself."""
    words: list[str] = []
    if progress["step"] is not None and not progress["total"]:
        words.append(f"step {progress['step']}")
    metrics = progress["metrics"]
    return words + [f"{name} {metrics[name]:.4g}" for name in telling(metrics)[:1]]


def _memory(gpu: Item) -> str:
    """Used and total memory; only the total while the used part is unknown."""
    total = format_gb(gpu["memory_mb"] / 1024)
    free_mb = gpu.get("free_mb")
    if free_mb is None:
        return total
    used_gb = (gpu["memory_mb"] - free_mb) / 1024
    return f"{used_gb:.1f}/{total}"


def _work(gpu: Item) -> str:
    models = " + ".join(gpu.get("models") or ())
    if models and gpu.get("paired_with"):
        models += f" (paired w/{','.join(map(str, gpu['paired_with']))})"
    return models or gpu.get("script") or gpu.get("problem") or ""


def _how_far(gpu: Item, now: float) -> str:
    """How long it has been idle, or how far a boot or a script is."""
    if gpu.get("expected_at"):
        return f"ready in {format_duration(max(gpu['expected_at'] - now, 0))}"
    if gpu.get("idle_s") is not None:
        return f"idle {format_duration(gpu['idle_s'])}"
    words: list[str] = []
    if gpu.get("progress") is not None:
        words.append(bar(gpu["progress"]))
    if gpu.get("eta_s") is not None:
        words.append(f"ETA {format_duration(gpu['eta_s'])}")
    elif gpu.get("since"):
        words.append(_for_how_long(gpu["since"], now))
    return " ".join(words)


def bar(part: float) -> str:
    """A share (0 to 1) as a bar with its percentage."""
    full = min(round(part * _CELLS), _CELLS)
    return f"{'█' * full}{'░' * (_CELLS - full)} {part:4.0%}"


def foot(seen: Seen) -> list[str]:
    """The queues' lengths, the mode, the batches in progress, pools and rented machines
    where there are some, and what to look at: GPUs and full disks.
    """
    live = [batch for batch in seen.batches if batch["ended_at"] is None]
    return [
        _queues_line(seen.waiting, live),
        *(_batch_line(batch) for batch in live),
        *pool_lines(seen.pools),
        *machine_lines(seen.machines),
        *gpu_warnings(seen.gpus),
        *seen.disk_problems,
    ]


def _queues_line(waiting: Mapping[str, int], batches: Sequence[Item]) -> str:
    """`batches`: those that are not over."""
    is_exclusive = any(batch["gpu_mode"] == "exclusive" for batch in batches)
    mode = "BATCH (exclusive)" if is_exclusive else "NORMAL"
    return (
        f"LLM queue: {waiting.get('llm', 0)} waiting | script queue:"
        f" {waiting.get('script', 0)} waiting | mode: {mode}"
    )


def gpu_warnings(gpus: Sequence[Item]) -> list[str]:
    """Which of the GPUs are hot, nearly full or slowed down. MIG instances have the
    index of their GPU, so what all of them say is one line.
    """
    lines = [
        f"GPU {gpu['index']} of {gpu['node']}: {'; '.join(gpu['warnings'])}"
        for gpu in gpus
        if gpu.get("warnings")
    ]
    return list(dict.fromkeys(lines))


def disk_problems(nodes: Sequence[Item]) -> list[str]:
    """Which of the nodes have a disk that is nearly full, and what fills it."""
    return [
        f"{node['name']}: {disk['problem']}"
        for node in nodes
        if (disk := node.get("disk")) and disk["problem"]
    ]


def _batch_line(batch: Item) -> str:
    done = batch["completed"] + batch["failed"]
    total = batch["total_items"]
    line = f"{batch['batch_id']}: {bar(done / total)} {done}/{total}"
    if batch["failed"]:
        line += f", {batch['failed']} failed"
    line += f" {batch['state']}"
    if batch["eta_s"] is not None:
        line += f" ETA {format_duration(batch['eta_s'])}"
    return line
