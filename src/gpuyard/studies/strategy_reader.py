"""Read what one strategy left: check each rank's output, and say what came of it.

No result that can be read is dropped because something else is missing: the strategy is
then PARTIAL, and its reasons say why.
"""

# pyarrow and pandas have no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportAttributeAccessIssue=false
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from gpuyard.studies.cluster_metrics import metric_rows
from gpuyard.studies.coverage import Coverage, RunPrompts, named
from gpuyard.studies.left_files import (
    longest_line,
    most_lines,
    read_left_object,
    shown,
)
from gpuyard.studies.load_figures import LoadFigures, read_load
from gpuyard.studies.plausibility import Plausibility
from gpuyard.studies.repeats import RepeatFigures, RepeatsAsked, read_repeats
from gpuyard.studies.runtime.server_commands import SERVERS
from gpuyard.studies.shards import ResultShard
from gpuyard.studies.traces import traces_of

ADDED = pa.schema(
    [
        ("strategy", pa.string()),
        ("strategy_id", pa.string()),
        ("rank", pa.int64()),
        ("gpu_id", pa.string()),
        ("cluster_completion", pa.string()),
        ("cluster_latency_ms", pa.float64()),
        ("ttft_ms", pa.float64()),
        ("tokens_generated", pa.int64()),
        ("prompt_tokens", pa.int64()),
        ("finish_reason", pa.string()),
        ("token_ids", pa.list_(pa.int32())),
        ("logprobs", pa.list_(pa.float32())),
        ("runner_up_ids", pa.list_(pa.int32())),
        ("runner_up_logprobs", pa.list_(pa.float32())),
        ("batch", pa.int64()),
        ("trace_path", pa.string()),
        ("status", pa.string()),
    ]
)
"""The columns beside those of the prompts.

`status` is ok or missing; the baseline's own is `local_status`.
"""
_OWN_WORKERS = ("vllm", *SERVERS)
_MOST_REASONS = 20
_MOST_RANKS = 100_000
_MOST_TIMES = 100
_LONGEST_NAME = 200
_LONGEST_PATH = 1000


@dataclass(frozen=True, slots=True)
class Collected:
    """The outcome of a strategy.

    `status` is COMPLETED, PARTIAL or FAILED, or the manifest's status if there is no
    output. `repeats` is None if the prompts were answered only once. `load` has the
    figures at each rate of requests. `impossible` are the reasons why its results
    cannot be true.
    """

    strategy_id: str
    strategy: str
    status: str
    reasons: tuple[str, ...]
    rows: int
    expected: int
    world_size: int
    repeats: RepeatFigures | None = None
    load: tuple[LoadFigures, ...] = ()
    impossible: tuple[str, ...] = ()


class StrategyReader:
    """Reads the output of one strategy.

    First all of `tables`, then `metrics` and `verdict`.
    """

    def __init__(
        self,
        run: Path,
        strategy_id: str,
        entry: Mapping[str, Any],
        prompts: RunPrompts,
        manifest: Mapping[str, Any],
    ) -> None:
        self._run = run
        self.strategy_id = strategy_id
        self._entry = entry
        self._prompts = prompts
        self._folder = run / strategy_id
        self._reasons: list[str] = []
        self._config, fault = read_object(self._folder, "exp_config.json")
        kind = entry.get("kind") or self._config.get("kind") or strategy_id
        self._kind = shown(kind, _LONGEST_NAME)
        # A job can change its own file. Manifests of earlier versions say too little.
        has_asked = bool(manifest.get("asked"))
        asked = {**manifest, **manifest["asked"]} if has_asked else self._config
        self._coverage = Coverage(prompts, asked.get("variants"), asked.get("limit"))
        load = asked.get("load")
        self._load: Mapping[str, Any] = load if isinstance(load, dict) else {}
        most = asked.get("max_new_tokens")
        self._most_tokens = most if type(most) is int else None
        self._times = self._times_asked(asked)
        self._most_lines = most_lines(self._coverage.expected)
        self._shards = [self._shard(rank) for rank in range(self._processes())]
        self._plausibility = Plausibility(self._most_tokens)
        # Rounded weights may come with a tokenizer of their own.
        model = self._config.get("model_path")
        self._has_same_tokenizer = model == asked.get("model_path", model)
        self._kept = 0
        if fault:
            self._reasons.append(f"exp_config.json {fault}")
        if self._config.get("run_id", run.name) != run.name:
            self._reasons.append(
                f"exp_config.json is of the run {self._config['run_id']}: two runs in"
                " one folder"
            )

    def tables(self) -> Iterator[pa.Table]:
        """Yield rows joined with their prompts, then rows for prompts without any."""
        traces = {
            trace.rank: shown(trace.path.relative_to(self._run), _LONGEST_PATH)
            for trace in traces_of(self._folder, self.strategy_id)
        }
        left = self._most_lines
        for shard in self._shards:
            yield from self._tables_of(shard, traces.get(shard.rank), left)
            left -= shard.lines
        missing = self._coverage.missing()
        if len(missing):
            yield self._joined(missing, None, {"status": "missing"})

    def _tables_of(
        self, shard: ResultShard, trace: str | None, most: int
    ) -> Iterator[pa.Table]:
        """Yield the rows of a shard's first `most` lines, joined with their prompts."""
        gpu = (shard.footer or {}).get("gpu_id")
        constants = {
            "rank": shard.rank,
            "gpu_id": None if gpu is None else shown(gpu, _LONGEST_NAME),
            "trace_path": trace,
            "status": "ok",
        }
        for table in shard.tables(most):
            rows, kept = self._coverage.admit(table, self.strategy_id)
            self._kept += kept.num_rows
            if kept.num_rows:
                tokens = self._prompts.tokens.take(rows)
                if not self._has_same_tokenizer:
                    tokens = pa.nulls(len(rows), tokens.type)
                self._plausibility.look_at(kept, tokens)
                yield self._joined(rows, kept, constants)

    def metrics(self) -> list[dict[str, Any]]:
        """The rows of the table of metrics."""
        return metric_rows(self.strategy_id, self._config, self._entry, self._shards)

    def verdict(self) -> Collected:
        """Return the outcome, once all tables have been read."""
        impossible = tuple(self._plausibility.reasons())
        load = read_load(self._folder, self._load, self._most_tokens)
        repeats = read_repeats(
            self._folder,
            str(self._config.get("precision")),
            self._most_tokens,
            RepeatsAsked(self._coverage.expected, self._times),
        )
        found = [
            *self._reasons,
            *self._lost_files(),
            *self._unread(),
            *(fault for shard in self._shards for fault in shard.faults),
            *self._coverage.reasons(),
            *impossible,
            *load.faults,
            *repeats.faults,
        ]
        status, reasons = outcome_of(self._entry, self._kept, found)
        more = len(reasons) - _MOST_REASONS
        if more > 0:
            reasons = [*reasons[:_MOST_REASONS], f"and {more} faults more"]
        return Collected(
            self.strategy_id,
            self._kind,
            status,
            tuple(map(shown, reasons)),
            self._kept,
            self._coverage.expected,
            len(self._shards),
            repeats.figures,
            load.figures,
            impossible,
        )

    def _unread(self) -> Iterator[str]:
        """Say that the ranks left far more lines than there can be results."""
        if any(shard.is_cut for shard in self._shards):
            yield (
                f"the ranks left more than {self._most_lines:,} lines for"
                f" {self._coverage.expected:,} results: the others are not read"
            )

    def _joined(
        self, prompts: pa.Array, rows: pa.Table | None, constants: Mapping[str, Any]
    ) -> pa.Table:
        """Join prompts, by their row numbers, with the rows of results.

        Without `rows`, the columns of the results are null. `prompt_tokens` is what the
        study counted, not what the strategy states.
        """
        columns = self._prompts.joined.take(prompts)
        values = {"strategy": self._kind, "strategy_id": self.strategy_id, **constants}
        found = (
            {}
            if rows is None
            else {
                "cluster_completion": rows["completion"],
                "cluster_latency_ms": rows["latency_ms"],
            }
        )
        for field in ADDED:
            if field.name in values:
                column = pa.repeat(
                    pa.scalar(values[field.name], field.type), len(prompts)
                )
            elif field.name == "prompt_tokens":
                column = self._prompts.tokens.take(prompts)
            elif rows is None:
                column = pa.nulls(len(prompts), field.type)
            else:
                column = found[field.name] if field.name in found else rows[field.name]
            columns = columns.append_column(field, column)
        return columns

    def _times_asked(self, asked: Mapping[str, Any]) -> int:
        """How often all prompts are answered.

        Manifests of earlier versions do not say it, and a job may say anything.
        """
        times = asked.get("repeats") if asked is not self._config else None
        if type(times) is int:
            return times
        said = self._config.get("repeats")
        return min(max(said, 1), _MOST_TIMES) if type(said) is int else 1

    def _processes(self) -> int:
        """Return how many processes write a shard.

        There is one for each rank, except that workers which an engine starts itself
        write none.
        """
        shards = (self._folder / "outputs").glob("shard_*.jsonl")
        written = sum(1 for _ in islice(shards, _MOST_RANKS))
        if self._config.get("engine") in _OWN_WORKERS:
            return max(1, written)
        size = self._config.get("world_size")
        if (
            isinstance(size, int)
            and not isinstance(size, bool)
            and 0 < size <= _MOST_RANKS
        ):
            return size
        if self._config:
            self._reasons.append(f"exp_config.json names no world_size: {size!r}")
        return written

    def _shard(self, rank: int) -> ResultShard:
        return ResultShard(
            self._folder,
            rank,
            self._file_of(rank, "output_shard_pattern", "shard_{rank}.jsonl"),
            self._file_of(rank, "metrics_file", "metrics_rank_{rank}.json"),
            longest_line(self._most_tokens),
        )

    def _file_of(self, rank: int, setting: str, usual: str) -> str:
        """The name of a rank's file; a pattern must tell ranks apart."""
        pattern = Path(str(self._config.get(setting) or usual)).name
        if "{rank}" not in pattern:
            pattern = usual
        return pattern.replace("{rank}", str(rank))

    def _lost_files(self) -> Iterator[str]:
        """Describe missing files, and shards that should not be there."""
        size = len(self._shards)
        if lost := [shard.path.name for shard in self._shards if not shard.is_there]:
            yield f"{len(lost)} of {size} shards are missing: {named(lost)}"
        if bare := [
            shard.footer_path.name for shard in self._shards if not shard.has_footer
        ]:
            yield (
                f"{len(bare)} of {size} footers are missing, so their shards may not be"
                f" whole: {named(bare)}"
            )
        expected = {shard.path.name for shard in self._shards}
        outputs = sorted(
            path.name for path in (self._folder / "outputs").glob("*.jsonl")
        )
        if extra := [name for name in outputs if name not in expected]:
            yield (
                f"{len(extra)} shards too many for {size} ranks are left out:"
                f" {named(extra)}; two runs in one folder?"
            )


def outcome_of(
    entry: Mapping[str, Any], rows: int, reasons: list[str]
) -> tuple[str, list[str]]:
    """Return the status and its reasons, from the manifest and the rows found."""
    said = str(entry.get("status") or "")
    # Of a job that ended well, or of an earlier look at it, what the files show counts.
    if entry.get("reason") and said not in ("COMPLETED", "PARTIAL"):
        reasons = [str(entry["reason"]), *reasons]
    if not rows:
        if said in ("PENDING", "SKIPPED"):
            return said, [str(entry.get("reason") or "it did not run")]
        told = said in ("SUBMITTED", "FAILED", "TIMEOUT")
        if said == "COMPLETED":
            reasons.insert(0, "the job says COMPLETED, but there is no output")
        elif not told:
            reasons.insert(0, "there is no output")
        return (said if told else "FAILED"), reasons
    if said in ("FAILED", "TIMEOUT"):
        reasons.insert(0, f"the job says {said}; {rows} results are there")
    return ("PARTIAL" if reasons else "COMPLETED"), reasons


def read_object(folder: Path, name: str) -> tuple[dict[str, Any], str]:
    """A file's JSON object, or none and what is wrong with the file."""
    try:
        return read_left_object(folder, name), ""
    except FileNotFoundError:
        return {}, "is missing"
    except (OSError, ValueError) as error:
        return {}, f"cannot be read: {error}"
