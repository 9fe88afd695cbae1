"""Which strategy is best by a stated objective, and why, in words."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gpuyard.domain.errors import InvalidInputError


class Objective(StrEnum):
    """What the best strategy has most or least of."""

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
            raise InvalidInputError.of("objective", f"{name!r} is no objective", f"one of {known}") from None


@dataclass(frozen=True, slots=True)
class Ranking:
    """Strategies from the best on, each with its figure; `left_out` says why others cannot be ranked."""

    objective: Objective
    limit: str
    order: tuple[tuple[str, float], ...]
    left_out: tuple[tuple[str, str], ...]
    reason: str

    @property
    def best(self) -> str | None:
        """The strategy that is best, if any can be ranked."""
        return self.order[0][0] if self.order else None


@dataclass(frozen=True, slots=True)
class _Rule:
    """`figure` of a row is better when it is smaller; `told` says it in words."""

    figure: Callable[[Mapping[str, Any]], float]
    told: Callable[[float], str]
    is_less: str


def gpu_hours_per_million(row: Mapping[str, Any]) -> float:
    """GPU-hours to generate a million tokens at the strategy's pace: GPUs × 10⁶ / (tokens/s × 3600). Loading the model
    and waiting for Slurm are not in it, so that it holds for runs of any length."""
    return row["gpus"] * 1e6 / (row["tokens_per_s"] * 3600)


_RULES = {
    Objective.CHEAPEST: _Rule(gpu_hours_per_million, lambda value: f"{value:.3g} GPU-hours per million tokens", "less"),
    Objective.FASTEST: _Rule(lambda row: row["latency_ms_p50"],
                             lambda value: f"a median latency of {value:,.0f} ms", "less"),
    Objective.THROUGHPUT: _Rule(lambda row: -row["tokens_per_s"], lambda value: f"{-value:,.1f} tokens/s", "more"),
}  # fmt: skip
_NEEDED = ("tokens_per_s", "latency_ms_p50", "latency_ms_p90", "gpus")


def rank(rows: Sequence[Mapping[str, Any]], objective: Objective, max_p90_ms: float | None = None) -> Ranking:
    """Rank rows of the summary, one per strategy. Only complete ones are ranked; if there is none, partial ones are."""
    complete = [row for row in rows if row["status"] == "COMPLETED"]
    left_out = [(row["strategy_id"], f"it is {row['status']}") for row in rows if row not in complete]
    if not complete:
        complete = [row for row in rows if row["status"] == "PARTIAL"]
        left_out = [(row["strategy_id"], f"it is {row['status']}") for row in rows if row not in complete]
    able: list[Mapping[str, Any]] = []
    for row in complete:
        lacking = [name for name in _NEEDED if not _is_figure(row.get(name))]
        if lacking:
            left_out.append((row["strategy_id"], f"it has no {', '.join(lacking)}"))
        elif max_p90_ms is not None and row["latency_ms_p90"] > max_p90_ms:
            told = f"its p90 latency of {row['latency_ms_p90']:,.0f} ms is over {max_p90_ms:,.0f} ms"
            left_out.append((row["strategy_id"], told))
        else:
            able.append(row)
    limit = "" if max_p90_ms is None else f" under a p90 latency of {max_p90_ms:,.0f} ms"
    rule = _RULES.get(objective) or _balance(able)
    order = sorted(((str(row["strategy_id"]), rule.figure(row)) for row in able), key=lambda one: one[1])
    return Ranking(objective, limit, tuple(order), tuple(left_out), _reason(rule, order, limit))


def _balance(rows: Sequence[Mapping[str, Any]]) -> _Rule:
    """The geometric mean of how near a strategy comes to the best in cost, median latency and throughput: 1 is best in
    all three."""
    figures = [(gpu_hours_per_million(row), row["latency_ms_p50"], 1 / row["tokens_per_s"]) for row in rows]
    best = [min(column) for column in zip(*figures, strict=True)]

    def figure(row: Mapping[str, Any]) -> float:
        mine = (gpu_hours_per_million(row), row["latency_ms_p50"], 1 / row["tokens_per_s"])
        return -(math.prod(least / value for least, value in zip(best, mine, strict=True)) ** (1 / 3))

    return _Rule(figure, lambda value: f"{-value:.0%} of the best in cost, latency and throughput together", "more")


def _reason(rule: _Rule, order: Sequence[tuple[str, float]], limit: str) -> str:
    if not order:
        return f"No strategy can be ranked{limit}."
    (best, value), *others = order
    reason = f"{best} has {rule.told(value)}{limit}"
    if not others:
        return f"{reason}; nothing else can be compared with it."
    second, behind = others[0]
    gap = 1 - value / behind if rule.is_less == "less" else value / behind - 1
    if gap < 0.005:
        return f"{reason}, as good as {second}."
    return f"{reason}, {gap:.0%} {rule.is_less} than {second}."


def _is_figure(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value > 0
