"""Collect the results of a run: check each rank's output and join it with the prompts.

No result that can be read is dropped because something else is missing: the strategy is
then PARTIAL, and its reasons say why.
"""

# pyarrow and pandas have no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportAttributeAccessIssue=false
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gpuyard.storage.archive import beside, replace
from gpuyard.studies.cluster_metrics import SCHEMA as METRICS_SCHEMA
from gpuyard.studies.cluster_metrics import metric_rows
from gpuyard.studies.coverage import Coverage, RunPrompts, named
from gpuyard.studies.left_files import read_left_object
from gpuyard.studies.load_figures import LoadFigures, read_load
from gpuyard.studies.plausibility import Plausibility
from gpuyard.studies.repeats import RepeatFigures, read_repeats
from gpuyard.studies.runtime.server_commands import SERVERS
from gpuyard.studies.shards import ResultShard

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
_WIDE = (
    "cluster_completion",
    "cluster_latency_ms",
    "ttft_ms",
    "tokens_generated",
    "finish_reason",
    "status",
)
_OWN_WORKERS = ("vllm", *SERVERS)
_RANK = re.compile(r"rank[-_]?(\d+)(?!\d)")
_MOST_REASONS = 20
_MOST_RANKS = 100_000


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


@dataclass(frozen=True, slots=True)
class Trace:
    """A profile that a rank left; `rank` is None where the file's name does not say."""

    strategy_id: str
    rank: int | None
    path: Path


class ResultCollector:
    """Writes a run's results, its metrics and its document after each strategy.

    The files are `run_<ts>.parquet`, `cluster_metrics_run_<ts>.parquet` and
    `run_<ts>.json`. Each is written to a temporary file that is then renamed.
    """

    def __init__(self, run: Path, results: Path | None = None) -> None:
        """`run` is the run's folder; `results` is by default that of its study.

        InvalidInputError: no prompts there.
        """
        self.run = run
        self.results = results or run.parent.parent / "results"
        self.table = self.results / f"{run.name}.parquet"
        self.metrics = self.results / f"cluster_metrics_{run.name}.parquet"
        self.document = self.results / f"{run.name}.json"
        self._prompts = RunPrompts.read(run / "prompts.parquet")
        self._schema = pa.schema([*self._prompts.joined.schema, *ADDED])
        self._collected: dict[str, Collected] = {}

    @property
    def collected(self) -> tuple[Collected, ...]:
        """The strategies collected so far."""
        return tuple(self._collected.values())

    def ingest_run(
        self, manifest: Mapping[str, Any] | None = None
    ) -> tuple[Collected, ...]:
        """Collect every strategy again, in the manifest's order.

        Folders that the manifest does not name come last.
        """
        manifest = self._manifest() if manifest is None else manifest
        self._collected.clear()
        names = {**_entries(manifest), **dict.fromkeys(self._folders())}
        return self.ingest_strategies(list(names), manifest)

    def ingest_strategy(
        self, strategy_id: str, manifest: Mapping[str, Any] | None = None
    ) -> Collected:
        """Collect one strategy, and replace what was collected of it before."""
        (collected,) = self.ingest_strategies([strategy_id], manifest)
        return collected

    def ingest_strategies(
        self, strategy_ids: Sequence[str], manifest: Mapping[str, Any] | None = None
    ) -> tuple[Collected, ...]:
        """Collect several strategies, and replace what was collected of them before.

        The files are written once for all of them. Without any, they have no rows.
        """
        manifest = self._manifest() if manifest is None else manifest
        entries = _entries(manifest)
        visits: list[_StrategyReader] = []
        for name in strategy_ids:
            self._collected.pop(name, None)
            entry = entries.get(name, {})
            reader = _StrategyReader(self.run, name, entry, self._prompts, manifest)
            visits.append(reader)
        self._keep_results(visits)
        self._keep_metrics([row for visit in visits for row in visit.metrics()])
        found = {visit.strategy_id: visit.verdict() for visit in visits}
        self._collected |= found
        self._keep_document(manifest)
        return tuple(found.values())

    def merge(self) -> pa.Table:
        """Return every row collected: one per (prompt_id, variant, strategy_id)."""
        return (
            pq.read_table(self.table)
            if self.table.exists()
            else self._schema.empty_table()
        )

    def to_dataframe(self, *, wide: bool = False) -> pd.DataFrame:
        """Return the results as a data frame.

        The long form has one row per (prompt_id, variant, strategy_id). The `wide` form
        has one row per (prompt_id, variant) and a column `<strategy_id>.<figure>` for
        each strategy and figure.
        """
        long = cast(pd.DataFrame, self.merge().to_pandas())
        if not wide:
            return long
        result = self._prompts.joined.to_pandas().set_index(["prompt_id", "variant"])
        for strategy_id, rows in long.groupby("strategy_id", sort=False):
            figures = rows.set_index(["prompt_id", "variant"])[list(_WIDE)]
            result = result.join(figures.add_prefix(f"{strategy_id}."))
        return result.reset_index()

    def iter_traces(self) -> Iterator[Trace]:
        """The profiles of every strategy, by name."""
        for strategy_id in self._folders():
            yield from _traces(self.run / strategy_id, strategy_id)

    def _manifest(self) -> dict[str, Any]:
        return _read_object(self.run, "manifest.json")[0]

    def _folders(self) -> list[str]:
        return [path.parent.name for path in sorted(self.run.glob("*/exp_config.json"))]

    def _repeated(self) -> Any:
        """Return the columns with repeated values, which are stored as dictionaries."""
        once = {"prompt_id", "cluster_completion"}
        return [
            field.name
            for field in self._schema
            if field.type == pa.string() and field.name not in once
        ]

    def _keep_results(self, visits: Sequence["_StrategyReader"]) -> None:
        with beside(self.table) as fresh:
            with pq.ParquetWriter(
                fresh, self._schema, use_dictionary=self._repeated()
            ) as writer:
                self._copy_others(writer)
                for visit in visits:
                    for table in visit.tables():
                        writer.write_table(
                            table.select(self._schema.names).cast(self._schema)
                        )
            replace(fresh, self.table)

    def _copy_others(self, writer: pq.ParquetWriter) -> None:
        """Copy the rows of the strategies that were collected before.

        Each row group holds one strategy.
        """
        if not self._collected or not self.table.exists():
            return
        with pq.ParquetFile(self.table) as old:
            for group in range(
                old.num_row_groups if old.schema_arrow.equals(self._schema) else 0
            ):
                owner = old.read_row_group(group, ["strategy_id"])["strategy_id"][
                    0
                ].as_py()
                if owner in self._collected:
                    writer.write_table(old.read_row_group(group))

    def _keep_metrics(self, rows: Sequence[Mapping[str, Any]]) -> None:
        table = pa.Table.from_pylist(list(rows), schema=METRICS_SCHEMA)
        if self._collected and self.metrics.exists():
            old = pq.read_table(self.metrics, schema=METRICS_SCHEMA)
            others = pc.is_in(
                old["strategy_id"],
                value_set=pa.array(list(self._collected), pa.string()),
            )
            table = pa.concat_tables([old.filter(others), table])
        with beside(self.metrics) as fresh:
            pq.write_table(table, fresh)
            replace(fresh, self.metrics)

    def _keep_document(self, manifest: Mapping[str, Any]) -> None:
        document = {
            **manifest,
            "run_id": self.run.name,
            "collected": [asdict(one) for one in self.collected],
        }
        with beside(self.document) as fresh:
            text = json.dumps(document, indent=2, ensure_ascii=False, default=str)
            fresh.write_text(text, encoding="utf-8")
            replace(fresh, self.document)


class _StrategyReader:
    """Reads the output of one strategy."""

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
        self._config, fault = _read_object(self._folder, "exp_config.json")
        self._kind = str(entry.get("kind") or self._config.get("kind") or strategy_id)
        self._shards = [self._shard(rank) for rank in range(self._processes())]
        # A job can change its own file. Manifests of earlier versions say too little.
        has_asked = bool(manifest.get("asked"))
        asked = {**manifest, **manifest["asked"]} if has_asked else self._config
        self._coverage = Coverage(prompts, asked.get("variants"), asked.get("limit"))
        self._load: Mapping[str, Any] = asked.get("load") or {}
        most = asked.get("max_new_tokens")
        self._most_tokens = most if type(most) is int else None
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
            trace.rank: str(trace.path.relative_to(self._run))
            for trace in _traces(self._folder, self.strategy_id)
        }
        for shard in self._shards:
            gpu = (shard.footer or {}).get("gpu_id")
            constants = {
                "rank": shard.rank,
                "gpu_id": None if gpu is None else str(gpu),
                "trace_path": traces.get(shard.rank),
                "status": "ok",
            }
            for table in shard.tables():
                rows, kept = self._coverage.admit(table, self.strategy_id)
                self._kept += kept.num_rows
                if kept.num_rows:
                    tokens = self._prompts.tokens.take(rows)
                    if not self._has_same_tokenizer:
                        tokens = pa.nulls(len(rows), tokens.type)
                    self._plausibility.look_at(kept, tokens)
                    yield self._joined(rows, kept, constants)
        missing = self._coverage.missing()
        if len(missing):
            yield self._joined(missing, None, {"status": "missing"})

    def metrics(self) -> list[dict[str, Any]]:
        """The rows of the table of metrics."""
        return metric_rows(self.strategy_id, self._config, self._entry, self._shards)

    def verdict(self) -> Collected:
        """Return the outcome, once all tables have been read."""
        reasons = [
            *self._reasons,
            *self._lost_files(),
            *(fault for shard in self._shards for fault in shard.faults),
        ]
        reasons += self._coverage.reasons()
        impossible = tuple(self._plausibility.reasons())
        load = read_load(self._folder, self._load, self._most_tokens)
        reasons += [*impossible, *load.faults]
        status, reasons = _judge(self._entry, self._kept, reasons)
        if len(reasons) > _MOST_REASONS:
            reasons = [
                *reasons[:_MOST_REASONS],
                f"and {len(reasons) - _MOST_REASONS} faults more",
            ]
        return Collected(
            self.strategy_id,
            self._kind,
            status,
            tuple(reasons),
            self._kept,
            self._coverage.expected,
            len(self._shards),
            read_repeats(
                self._folder, str(self._config.get("precision")), self._most_tokens
            ),
            load.figures,
            impossible,
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

    def _processes(self) -> int:
        """Return how many processes write a shard.

        There is one for each rank, except that workers which an engine starts itself
        write none.
        """
        written = len(list((self._folder / "outputs").glob("shard_*.jsonl")))
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
        output = str(self._config.get("output_shard_pattern") or "shard_{rank}.jsonl")
        metrics = str(self._config.get("metrics_file") or "metrics_rank_{rank}.json")
        return ResultShard(
            self._folder,
            rank,
            *(
                Path(name.replace("{rank}", str(rank))).name
                for name in (output, metrics)
            ),
        )

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


def _judge(
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


def _entries(manifest: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {str(entry["strategy_id"]): entry for entry in manifest.get("entries") or ()}


def _traces(folder: Path, strategy_id: str) -> Iterator[Trace]:
    for path in sorted((folder / "profiling").rglob("*")):
        if path.is_file():
            match = _RANK.search(path.name)
            yield Trace(strategy_id, int(match[1]) if match else None, path)


def _read_object(folder: Path, name: str) -> tuple[dict[str, Any], str]:
    """A file's JSON object, or none and what is wrong with the file."""
    try:
        return read_left_object(folder, name), ""
    except FileNotFoundError:
        return {}, "is missing"
    except (OSError, ValueError) as error:
        return {}, f"cannot be read: {error}"
