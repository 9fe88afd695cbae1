"""Which strategy is best by a stated objective, and why, in words."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gpuyard.domain.errors import InvalidInputError


class Objective(StrEnum):
    """What the best strategy is chosen by."""

    CHEAPEST = "cheapest"
    FASTEST = "fastest"
    THROUGHPUT = "throughput"
    BALANCED = "balanced"

    @classmethod
    def of(cls, name: str) -> "Objective":
        """By its name; InvalidInputError lists them."""
        try:
            return cls(name)
        except ValueError:
            known = ", ".join(cls)
            raise InvalidInputError.of(
                "objective", f"{name!r} is no objective", f"one of {known}"
            ) from None


@dataclass(frozen=True, slots=True)
class StrategyRanking:
    """Strategies from best to worst, each with its figure.

    `left_out` names the strategies that cannot be ranked, and why; `wrong` those whose
    answers are not right, or not known to be, and those whose results cannot be true.
    """

    objective: Objective
    limit: str
    order: tuple[tuple[str, float], ...]
    left_out: tuple[tuple[str, str], ...]
    reason: str
    wrong: tuple[tuple[str, str], ...] = ()

    @property
    def best(self) -> str | None:
        """The strategy that is best, if any can be ranked."""
        return self.order[0][0] if self.order else None


@dataclass(frozen=True, slots=True)
class _RankingRule:
    """How strategies are compared.

    The strategy with the smallest `figure` is best. `describe` puts a figure into
    words, and `comparison` is `less` or `more`.
    """

    figure: Callable[[Mapping[str, Any]], float]
    describe: Callable[[float], str]
    comparison: str


def gpu_hours_per_million(row: Mapping[str, Any]) -> float:
    """Return the GPU-hours per million tokens: GPUs × 10⁶ / (tokens/s × 3600).

    Loading the model and waiting for Slurm are not included, so that the figure does
    not depend on the length of the run.
    """
    return row["gpus"] * 1e6 / (row["tokens_per_s"] * 3600)


_RULES = {
    Objective.CHEAPEST: _RankingRule(
        gpu_hours_per_million,
        lambda value: f"{value:.3g} GPU-hours per million tokens",
        "less",
    ),
    Objective.FASTEST: _RankingRule(
        lambda row: row["latency_ms_p50"],
        lambda value: f"a median latency of {value:,.0f} ms",
        "less",
    ),
    Objective.THROUGHPUT: _RankingRule(
        lambda row: -row["tokens_per_s"],
        lambda value: f"{-value:,.1f} tokens/s",
        "more",
    ),
}
_NEEDED = ("tokens_per_s", "latency_ms_p50", "latency_ms_p90", "gpus")


def rank(
    rows: Sequence[Mapping[str, Any]],
    objective: Objective,
    max_p90_ms: float | None = None,
    wrong: Mapping[str, str] | None = None,
) -> StrategyRanking:
    """Rank rows of the summary, one per strategy.

    Strategies that are in `wrong`, with the reason, are never ranked. Of the others
    only complete ones are ranked; if there are none, the partial ones are.
    """
    wrong = wrong or {}
    rows = [row for row in rows if row["strategy_id"] not in wrong]
    has_complete = any(row["status"] == "COMPLETED" for row in rows)
    ranked_status = "COMPLETED" if has_complete else "PARTIAL"
    able: list[Mapping[str, Any]] = []
    wrong_status: list[tuple[str, str]] = []
    excluded: list[tuple[str, str]] = []
    for row in rows:
        strategy_id = row["strategy_id"]
        if row["status"] != ranked_status:
            wrong_status.append((strategy_id, f"it is {row['status']}"))
        elif reason := _why_excluded(row, max_p90_ms):
            excluded.append((strategy_id, reason))
        else:
            able.append(row)
    limit = ""
    if max_p90_ms is not None:
        limit = f" under a p90 latency of {max_p90_ms:,.0f} ms"
    rule = _RULES.get(objective) or _balance(able)
    figures = [(str(row["strategy_id"]), rule.figure(row)) for row in able]
    order = sorted(figures, key=lambda item: item[1])
    labels = {str(row["strategy_id"]): str(row.get("label") or "") for row in able}
    reason = _reason(
        rule, [(labels[name] or name, value) for name, value in order], limit
    )
    left_out = (*wrong_status, *excluded)
    return StrategyRanking(
        objective, limit, tuple(order), left_out, reason, tuple(wrong.items())
    )


def _why_excluded(row: Mapping[str, Any], max_p90_ms: float | None) -> str:
    """Return why a row cannot be ranked, or an empty text if it can."""
    lacking = [name for name in _NEEDED if not _is_figure(row.get(name))]
    if lacking:
        return f"it has no {', '.join(lacking)}"
    p90_ms = row["latency_ms_p90"]
    if max_p90_ms is not None and p90_ms > max_p90_ms:
        return f"its p90 latency of {p90_ms:,.0f} ms is over {max_p90_ms:,.0f} ms"
    return ""


def _balance(rows: Sequence[Mapping[str, Any]]) -> _RankingRule:
    """Rank by cost, median latency and throughput together.

    The figure is the geometric mean of how near a strategy comes to the best in each; 1
    is best in all three.
    """
    best = [min(column) for column in zip(*map(_costs, rows), strict=True)]

    def figure(row: Mapping[str, Any]) -> float:
        pairs = zip(best, _costs(row), strict=True)
        shares_of_best = [least / value for least, value in pairs]
        return -(math.prod(shares_of_best) ** (1 / 3))

    return _RankingRule(
        figure,
        lambda value: (
            f"{-value:.0%} of the best in cost, latency and throughput together"
        ),
        "more",
    )


def _costs(row: Mapping[str, Any]) -> tuple[float, float, float]:
    """Return cost, median latency and time per token; less is better in each."""
    hours = gpu_hours_per_million(row)
    return hours, row["latency_ms_p50"], 1 / row["tokens_per_s"]


def _reason(rule: _RankingRule, order: Sequence[tuple[str, float]], limit: str) -> str:
    if not order:
        return f"No strategy can be ranked{limit}."
    (best, value), *others = order
    reason = f"{best} has {rule.describe(value)}{limit}"
    if not others:
        return f"{reason}; nothing else can be compared with it."
    second, behind = others[0]
    gap = 1 - value / behind if rule.comparison == "less" else value / behind - 1
    if gap < 0.005:
        return f"{reason}, as good as {second}."
    return f"{reason}, {gap:.0%} {rule.comparison} than {second}."


def _is_figure(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value > 0
