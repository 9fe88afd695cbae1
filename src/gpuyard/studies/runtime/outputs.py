"""Write what a rank leaves: the rows of its shard, and its metrics as footer."""

import json
import os
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .experiment import Experiment
from .generation_loop import BatchDone
from .gpu_meter import GpuFigures
from .launch import LaunchedProcess


@dataclass
class RankReport:
    """The metrics of one rank, with the names of the metrics file.

    Sizes are bytes, times are seconds. Values that were not measured are None.
    """

    rank: int
    host: str
    dp_rank: int = 0
    pp_rank: int = 0
    tp_rank: int = 0
    device: str = "cpu"
    gpu_id: str | None = None
    gpu_name: str | None = None
    engine: str = ""
    engine_version: str = ""
    torch_version: str = ""
    rows: int = 0
    complete: bool = False
    load_s: float = 0.0
    bytes_read: int = 0
    bytes_share: int = 0
    peak_memory_bytes: int | None = 0
    prompts: int = 0
    tokens_generated: int = 0
    generate_s: float = 0.0
    tokens_per_s: float = 0.0
    compute_s: float | None = 0.0
    communication_s: float | None = 0.0
    avg_latency_ms: float | None = None
    # What NVML tells of this rank's GPUs during generation: see `GpuFigures`.
    gpu_utilization: float | None = None
    gpu_memory_bytes: int | None = None
    energy_j: float | None = None
    batches: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    # Seconds and tokens of each time that all prompts were answered.
    passes: list[dict[str, float]] = field(default_factory=list[dict[str, float]])
    started_at: float = field(default_factory=time.time)
    ended_at: float = 0.0
    error: str | None = None

    def spent(self, generate_s: float, communication_s: float | None) -> None:
        """Record the generation time and how much was communication, if known."""
        self.generate_s = generate_s
        self.communication_s = None
        self.compute_s = None
        if communication_s is not None:
            self.communication_s = min(communication_s, generate_s)
            self.compute_s = generate_s - self.communication_s
        self.tokens_per_s = self.tokens_generated / generate_s if generate_s else 0.0

    def measured(self, figures: GpuFigures) -> None:
        """Record what the GPUs did."""
        self.gpu_utilization = figures.utilization
        self.gpu_memory_bytes = figures.memory_bytes
        self.energy_j = figures.energy_j

    def of_worker(self, rank: int) -> "RankReport":
        """Return the metrics of a worker that the engine of this driver has started.

        They have the times of the driver, which has written all answers.
        """
        batches = [{**batch, "tokens": 0, "ttft_ms": None} for batch in self.batches]
        return replace(
            self,
            rank=rank,
            rows=0,
            tokens_generated=0,
            tokens_per_s=0.0,
            avg_latency_ms=None,
            batches=batches,
            passes=[],
            peak_memory_bytes=None,
            gpu_utilization=None,
            gpu_memory_bytes=None,
            # The driver has measured the GPUs of all workers.
            energy_j=None if self.energy_j is None else 0.0,
            complete=True,
        )


class RepeatWriter:
    """Writes the rows of one rank from when all prompts are answered again."""

    def __init__(self, experiment: Experiment, launch: LaunchedProcess) -> None:
        self._path = experiment.repeats_path(launch.rank)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_bytes(b"")

    def persist(self, done: BatchDone, repeat: int) -> None:
        """Append the rows of a batch."""
        lines = [
            json.dumps({**row, "repeat": repeat}, ensure_ascii=False)
            for row in done.rows
        ]
        with self._path.open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)


class ShardWriter:
    """Writes the rows of one rank batch by batch.

    What was done before a run is killed is therefore on the disk.
    """

    def __init__(self, experiment: Experiment, launch: LaunchedProcess) -> None:
        self._path = experiment.shard_path(launch.rank)
        self._latencies: list[float] = []
        self._path.parent.mkdir(parents=True, exist_ok=True)
        experiment.metrics_path(launch.rank).unlink(missing_ok=True)
        self._path.write_bytes(b"")

    def persist_rank_outputs(
        self, done: BatchDone, report: RankReport, *, is_output: bool
    ) -> None:
        """Count a batch, and append its rows if this rank writes the output."""
        report.prompts += done.size
        rows = done.rows if is_output else []
        report.batches.append(
            BatchDone(
                rows, done.variant, done.size, done.prompt_tokens, done.seconds
            ).to_json()
        )
        if not rows:
            return
        with self._path.open("ab") as file:
            file.write(
                b"".join(
                    json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows
                )
            )
            file.flush()
            os.fsync(file.fileno())
        self._latencies += [
            row["latency_ms"] for row in rows if row["latency_ms"] is not None
        ]
        report.rows += len(rows)
        report.tokens_generated += sum(row["tokens_generated"] for row in rows)
        report.avg_latency_ms = (
            sum(self._latencies) / len(self._latencies) if self._latencies else None
        )


def finalize_rank(path: Path, report: RankReport) -> None:
    """Write the metrics atomically.

    They come last: a shard without them is not complete.
    """
    report.ended_at = time.time()
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    with partial.open("w", encoding="utf-8") as file:
        json.dump(vars(report), file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
