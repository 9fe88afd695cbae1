"""The table of a run: each strategy's correctness, speed, memory, cost and rank."""

# pandas has no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportArgumentType=false
# pyright: reportCallIssue=false, reportAttributeAccessIssue=false, reportOptionalSubscript=false
# pyright: reportReturnType=false
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, cast

import pandas as pd
import pyarrow.parquet as pq

from gpuyard.domain.errors import InvalidInputError
from gpuyard.studies.answer_check import CheckedStrategy, Correctness, check_answers
from gpuyard.studies.answer_tables import (
    answers_of_run,
    baseline_floor,
    other_tokens,
)
from gpuyard.studies.correctness import ALL, METRICS, PEER_METRICS, CorrectnessEvaluator
from gpuyard.studies.failures import JobFailure
from gpuyard.studies.machine_warnings import machine_warnings, model_warning
from gpuyard.studies.pace import is_missing, is_number, most, number, pace, repeated
from gpuyard.studies.ranking import (
    Objective,
    StrategyRanking,
    gpu_hours_per_million,
    rank,
)

PRIMARY = ("token_agreement", "peer_agreement")
"""The figure of correctness that tables and plots lead with: the first that there is.
"""
_GIB = 2**30
_LEAST_FLOOR = 0.5
_OF_GPUS = ("gpu_utilization", "energy_j")


class RunTable:
    """The figures of a run.

    `rows` has one row per strategy (variant `all`), then one per strategy and variant.
    `results` (long form), `metrics` (per rank), `scores` and `correctness` are data
    frames.
    """

    def __init__(
        self,
        document: Mapping[str, Any],
        results: pd.DataFrame,
        metrics: pd.DataFrame,
        evaluator: CorrectnessEvaluator | None = None,
        *,
        objective: str = "cheapest",
        max_p90_ms: float | None = None,
        price_per_gpu_hour: float | None = None,
        currency: str = "USD",
        rank_quantized: bool = False,
    ) -> None:
        """`document` is `run_<ts>.json`.

        Without a price there are GPU-hours and no cost.
        """
        self.document = document
        self._names = self._find_names()
        self._labels = self._find_labels()
        self.results = results
        # Tables of earlier versions have no figures of GPUs.
        missing = [name for name in _OF_GPUS if name not in metrics]
        self.metrics = metrics.assign(**dict.fromkeys(missing, math.nan))
        self.run_id = str(document["run_id"])
        self.collected: list[dict[str, Any]] = list(document.get("collected") or ())
        self.price = price_per_gpu_hour
        self.currency = currency
        self._rank_quantized = rank_quantized
        sizes = {
            row["strategy_id"]: _gpus(self._ranks(row["strategy_id"]))
            for row in self.collected
        }
        evaluator = evaluator or CorrectnessEvaluator()
        by_size = _by_size(self.collected, sizes)
        self.checked: dict[str, CheckedStrategy] = check_answers(
            answers_of_run(
                results, metrics, by_size, sizes, evaluator, self._noise_floor()
            )
        )
        evaluator.prefer_peers([*self._references(), *by_size])
        self.scores = evaluator.evaluate(results)
        self.correctness = evaluator.summarize(self.scores)
        self.rows = self._scaled(list(self._rows()))
        self.warnings = (*evaluator.warnings, *self._find_warnings())
        self.ranking: StrategyRanking = rank(
            self.strategies, Objective.of(objective), max_p90_ms, self._wrong()
        )

    @classmethod
    def load(cls, results: Path, run_id: str, **options: Any) -> Self:
        """Read a run from a study's `results/`; InvalidInputError if it is absent."""
        try:
            document = json.loads((results / f"{run_id}.json").read_bytes())
            long = pq.read_table(results / f"{run_id}.parquet").to_pandas()
            metrics = pq.read_table(
                results / f"cluster_metrics_{run_id}.parquet"
            ).to_pandas()
        except (OSError, ValueError) as error:
            fault = f"{run_id} is not collected in {results}: {error}"
            raise InvalidInputError.of(
                "run", fault, "collect it with `gpuyard study resume`"
            ) from None
        return cls(document, long, metrics, **options)

    @property
    def strategies(self) -> list[dict[str, Any]]:
        """The rows over all variants, one per strategy."""
        return [row for row in self.rows if row["variant"] == ALL]

    @property
    def primary(self) -> str:
        """The leading score: agreement with the reference, or else with the peer."""
        for name in PRIMARY:
            if any(is_number(row.get(name)) for row in self.rows):
                return name
        return PRIMARY[0]

    def label(self, strategy_id: str) -> str:
        """What people call a strategy: the name that its study gives it, or its id.

        The name of a sweep has the values of the job.
        """
        return self._labels.get(strategy_id, strategy_id)

    def given_name(self, strategy_id: str) -> str:
        """The name that its study gives a strategy; empty if it gives none.

        All jobs of a sweep have the same.
        """
        return self._names.get(strategy_id, "")

    def _find_names(self) -> dict[str, str]:
        names: dict[str, str] = {}
        for entry in self.document.get("entries") or ():
            name = str(entry.get("strategy") or "")
            if name and name != entry.get("kind"):
                names[str(entry["strategy_id"])] = name
        return names

    def _find_labels(self) -> dict[str, str]:
        labels: dict[str, str] = {}
        for entry in self.document.get("entries") or ():
            name = self.given_name(str(entry["strategy_id"]))
            if name:
                overrides: Mapping[str, int] = entry.get("overrides") or {}
                values = [f"{key} {value}" for key, value in overrides.items()]
                labels[str(entry["strategy_id"])] = ", ".join([name, *values])
        return labels

    @property
    def failures(self) -> dict[str, JobFailure]:
        """Why jobs failed, by strategy; of each the newest try counts."""
        found: dict[str, JobFailure] = {}
        for entry in self.document.get("entries") or ():
            strategy_id = str(entry["strategy_id"])
            found.pop(strategy_id, None)
            failure = JobFailure.of(entry.get("failure"))
            if failure is not None:
                found[strategy_id] = failure
        return found

    @property
    def loads(self) -> dict[str, list[dict[str, Any]]]:
        """The figures under load (see `LoadFigures`) by strategy."""
        under_load = [row for row in self.collected if row.get("load")]
        return {row["strategy_id"]: row["load"] for row in under_load}

    @property
    def baseline(self) -> str:
        """A sentence with the baseline's model, host and API; empty without one."""
        told = [
            sorted(set(self.results[name].dropna())) if name in self.results else []
            for name in ("local_model", "source", "local_api")
        ]
        models, hosts, apis = (", ".join(map(str, names)) for names in told)
        if not models:
            return ""
        where = f" at {hosts}" if hosts else ""
        interface = f", API {apis}" if apis else ""
        floor = baseline_floor(self.results)
        same = ""
        if floor is not None:
            same = f" Asked again, it gave the same answer in {floor:.0%} of the times."
        return f"The baseline is {models}{where}{interface}.{same}"

    def _find_warnings(self) -> Iterator[str]:
        """What a reader must know besides the warnings about scores."""
        odd = other_tokens(self.results)
        if odd:
            yield odd
        yield from machine_warnings(self.metrics, self.label)
        changed = model_warning(self.document.get("entries") or (), self.label)
        if changed:
            yield changed
        for name in self._references():
            floor = self._noise_floor().get(name, 1.0)
            if floor < _LEAST_FLOOR:
                yield (
                    f"{self.label(name)}, the reference, agrees with itself only in"
                    f" {floor:.0%} of the times when it answers again. So it tells"
                    " little about the others."
                )
        for row in self.strategies:
            if row["stated_s"] is not None:
                yield (
                    f"{row['label']} states that it generated for"
                    f" {row['stated_s']:,.2f} s, but its answers took"
                    f" {row['generate_s']:,.2f} s: the longer time counts."
                )

    def _noise_floor(self) -> dict[str, float]:
        """The share in which each strategy that repeated its answers agrees."""
        return {
            row["strategy_id"]: row["repeats"]["agreeing"]
            for row in self.collected
            if row.get("repeats")
        }

    def _references(self) -> list[str]:
        return [
            name
            for name, found in self.checked.items()
            if found.correctness is Correctness.REFERENCE
        ]

    def _wrong(self) -> dict[str, str]:
        """Return the strategies whose results keep them from being best, and why."""
        impossible = {
            row["strategy_id"]: f"its results cannot be: {'; '.join(row['impossible'])}"
            for row in self.collected
            if row.get("impossible")
        }
        wrong = {
            name: found.reason
            for name, found in self.checked.items()
            if not self._can_be_best(found.correctness)
        }
        return impossible | wrong

    def _can_be_best(self, correctness: Correctness) -> bool:
        is_rounded = correctness is Correctness.ROUNDED
        return correctness.can_be_best or (is_rounded and self._rank_quantized)

    def _ranks(self, strategy_id: str) -> pd.DataFrame:
        return self.metrics[self.metrics["strategy_id"] == strategy_id]

    def _rows(self) -> Iterator[dict[str, Any]]:
        scores = {
            (row["strategy_id"], row["variant"]): row
            for row in self.correctness.to_dict("records")
        }
        for one in self.collected:
            strategy_id = one["strategy_id"]
            mine = self.results[self.results["strategy_id"] == strategy_id]
            ranks = self._ranks(strategy_id)
            for variant in [ALL, *dict.fromkeys(mine["variant"])]:
                part = mine if variant == ALL else mine[mine["variant"] == variant]
                row = {
                    "strategy_id": strategy_id,
                    "label": self.label(strategy_id),
                    "strategy": one["strategy"],
                    "variant": variant,
                    "status": one["status"],
                    **self._checked_figures(strategy_id),
                    **_layout(ranks),
                    **pace(part, ranks, variant),
                }
                if variant == ALL:
                    able = row["gpus"] and row["tokens_per_s"]
                    row |= repeated(one.get("repeats"), row["tokens_per_s"])
                    row |= {
                        **self._spent(ranks),
                        "gpu_hours_per_million": (
                            gpu_hours_per_million(row) if able else None
                        ),
                    }
                    row["cost_per_million"] = self._cost_per_million(row)
                    row["energy_per_token_j"] = _energy_per_token(row)
                row |= {
                    name: scores.get((strategy_id, variant), {}).get(name)
                    for name in _correctness_columns()
                }
                yield row | {"reasons": "; ".join(one["reasons"])}

    def _cost_per_million(self, row: Mapping[str, Any]) -> float | None:
        hours: float | None = row["gpu_hours_per_million"]
        return None if hours is None or self.price is None else hours * self.price

    def _checked_figures(self, strategy_id: str) -> dict[str, Any]:
        """What is known of a strategy's answers, and how many differ from others."""
        found = self.checked.get(strategy_id)
        comparison = None if found is None else found.comparison
        if found is None or comparison is None:
            known = None if found is None else found.correctness.value
            return {"answers_are": known, "differ_by_rounding": None, "wrong": None}
        return {
            "answers_are": found.correctness.value,
            "differ_by_rounding": comparison.rounding,
            "wrong": comparison.beyond + comparison.unexplained,
        }

    def _spent(self, ranks: pd.DataFrame) -> dict[str, Any]:
        """Return the job's time, GPU-hours, cost, memory and communication.

        The wall-clock time is Slurm's elapsed time, or else the time from the first
        rank's start to the last rank's end. GPU-hours are wall clock × GPUs / 3600, and
        the cost is GPU-hours × price. Communication is a share of the seconds that all
        ranks spent computing or communicating. Memory is that of the rank with most.
        Energy is in joules, of all GPUs during generation.
        """
        wall_s = most(ranks["elapsed_s"])
        if wall_s is None:
            started = number(ranks["started_at"].min())
            ended = number(ranks["ended_at"].max())
            wall_s = (
                ended - started if started is not None and ended is not None else None
            )
        gpus = _gpus(ranks)
        peak = most(ranks["peak_memory_bytes"])
        hours = None if wall_s is None or not gpus else wall_s * gpus / 3600
        talking = number(ranks["communication_s"].sum()) or 0.0
        computing = number(ranks["compute_s"].sum()) or 0.0
        rss = most(ranks["max_rss_bytes"])
        return {
            "wall_s": wall_s,
            "gpu_hours": hours,
            "cost": None if hours is None or self.price is None else hours * self.price,
            "load_s": most(ranks["load_s"]),
            "peak_memory_gib": None if peak is None else peak / _GIB,
            "max_rss_gib": None if rss is None else rss / _GIB,
            "gpu_utilization": number(ranks["gpu_utilization"].mean()),
            "energy_j": number(ranks["energy_j"].sum(skipna=False)),
            "communication_share": (
                talking / (talking + computing) if talking + computing else None
            ),
        }

    def _scaled(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Add speed-up and parallel efficiency to the rows.

        Speed-up is tokens/s divided by those of the smallest layout: of those whose
        answers are not wrong the one with fewest GPUs, and of several the fastest.
        Efficiency is speed-up × its GPUs / the row's GPUs. Each variant is compared
        with itself.
        """
        wrong = self._wrong()
        for variant in dict.fromkeys(row["variant"] for row in rows):
            able = [
                row
                for row in rows
                if row["variant"] == variant
                and row["gpus"]
                and row["tokens_per_s"]
                and row["status"] in ("COMPLETED", "PARTIAL")
            ]
            right = [row for row in able if row["strategy_id"] not in wrong]
            base = min(
                right or able,
                key=lambda row: (row["gpus"], -row["tokens_per_s"]),
                default=None,
            )
            for row in able if base else ():
                row["speed_up"] = row["tokens_per_s"] / base["tokens_per_s"]
                row["efficiency"] = row["speed_up"] * base["gpus"] / row["gpus"]
        return rows


def _energy_per_token(row: Mapping[str, Any]) -> float | None:
    """Return joules per generated token, if all ranks measured their energy."""
    energy_j: float | None = row["energy_j"]
    if not energy_j or not row["tokens"]:
        return None
    return energy_j / row["tokens"]


def _correctness_columns() -> list[str]:
    shares = [
        f"{name}{end}"
        for name in (*METRICS, *PEER_METRICS)
        for end in ("", "_low", "_high")
    ]
    return ["diverged", "peer_diverged", *shares]


def _layout(ranks: pd.DataFrame) -> dict[str, Any]:
    """Return the strategy's layout, and as `gpus` the number of GPUs that it books.

    That is nodes × GPUs per node, or else one GPU per rank.
    """
    names = (
        "num_nodes",
        "gpus_per_node",
        "tp_size",
        "pp_size",
        "dp_size",
        "world_size",
        "engine",
        "precision",
        "batch_size",
        "quantization",
    )
    first: Mapping[str, Any] = (
        {} if ranks.empty else cast(Mapping[str, Any], ranks.iloc[0].to_dict())
    )
    shape = {
        name: None if is_missing(first.get(name)) else first[name] for name in names
    }
    return {**shape, "gpus": _gpus(ranks)}


def _gpus(ranks: pd.DataFrame) -> int | None:
    if ranks.empty:
        return None
    booked = (
        number(ranks["num_nodes"].iloc[0]),
        number(ranks["gpus_per_node"].iloc[0]),
    )
    if booked[0] and booked[1]:
        return int(booked[0] * booked[1])
    return len(ranks)


def _by_size(
    collected: Sequence[Mapping[str, Any]], sizes: Mapping[str, int | None]
) -> list[str]:
    """Order strategies with answers: completed ones first, then by number of GPUs."""
    able = [row for row in collected if row["rows"]]
    able.sort(
        key=lambda row: (
            row["status"] != "COMPLETED",
            sizes[row["strategy_id"]] or math.inf,
        )
    )
    return [row["strategy_id"] for row in able]
