"""Collect the results of a run: join them with the prompts, in one table for all.

`strategy_reader` reads what each strategy left.
"""

# pyarrow and pandas have no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportAttributeAccessIssue=false
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any, cast

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gpuyard.storage.archive import beside, replace
from gpuyard.studies.cluster_metrics import SCHEMA as METRICS_SCHEMA
from gpuyard.studies.coverage import RunPrompts
from gpuyard.studies.strategy_reader import (
    ADDED,
    Collected,
    StrategyReader,
    read_object,
)
from gpuyard.studies.traces import Trace, traces_of

__all__ = ["Collected", "ResultCollector", "Trace"]
_WIDE = (
    "cluster_completion",
    "cluster_latency_ms",
    "ttft_ms",
    "tokens_generated",
    "finish_reason",
    "status",
)
_STRATEGY_ID = re.compile(r"[A-Za-z0-9_.-]{1,200}")
_MOST_FOLDERS = 1000


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
        visits: list[StrategyReader] = []
        for name in strategy_ids:
            self._collected.pop(name, None)
            entry = entries.get(name, {})
            reader = StrategyReader(self.run, name, entry, self._prompts, manifest)
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
            yield from traces_of(self.run / strategy_id, strategy_id)

    def _manifest(self) -> dict[str, Any]:
        return read_object(self.run, "manifest.json")[0]

    def _folders(self) -> list[str]:
        """The folders of strategies; others may have made more, with any name."""
        names = (path.parent.name for path in self.run.glob("*/exp_config.json"))
        return sorted(
            islice((one for one in names if _STRATEGY_ID.fullmatch(one)), _MOST_FOLDERS)
        )

    def _repeated(self) -> Any:
        """Return the columns with repeated values, which are stored as dictionaries."""
        once = {"prompt_id", "cluster_completion"}
        return [
            field.name
            for field in self._schema
            if field.type == pa.string() and field.name not in once
        ]

    def _keep_results(self, visits: Sequence["StrategyReader"]) -> None:
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


def _entries(manifest: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {str(entry["strategy_id"]): entry for entry in manifest.get("entries") or ()}
