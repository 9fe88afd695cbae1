"""What a strategy's repeats tell: the noise floor of its answers, and of its speed.

The files are `repeats/shard_<rank>.jsonl` and `passes` in each rank's metrics.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from gpuyard.studies.agreement import Key, StrategyAnswer, compare
from gpuyard.studies.left_files import left_rows, read_left_object

# Student's t for an interval of 95 %, by degrees of freedom.
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
_NORMAL = 1.96
_NEEDED = {"prompt_id", "variant"}


@dataclass(frozen=True, slots=True)
class RepeatFigures:
    """What was found in the repeats of one strategy.

    `same` is the share of answers of which every token is the same as the first time,
    `agreeing` the share that agrees up to rounding. `tokens_per_s` has the throughput
    of each pass, the first one included.
    """

    repeats: int
    same: float
    agreeing: float
    tokens_per_s: tuple[float, ...]


def read_repeats(folder: Path, precision: str) -> RepeatFigures | None:
    """Read what a strategy left in its folder; None if it answered only once."""
    passes: dict[int, dict[Key, StrategyAnswer]] = {}
    for row in left_rows(folder / "repeats", {*_NEEDED, "repeat"}):
        if isinstance(row["repeat"], int):
            passes.setdefault(row["repeat"], {})[_key(row)] = _answer(row)
    if not passes:
        return None
    first = {_key(row): _answer(row) for row in left_rows(folder / "outputs", _NEEDED)}
    comparisons = [compare(first, again, precision) for again in passes.values()]
    compared = sum(one.compared for one in comparisons)
    if not compared:
        return None
    return RepeatFigures(
        len(passes) + 1,
        sum(one.same for one in comparisons) / compared,
        sum(one.agreeing for one in comparisons) / compared,
        tuple(_paces(folder / "metrics")),
    )


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of a mean by Student's t; None for fewer than two."""
    count = len(values)
    if count < 2:
        return None
    t = _STUDENT[count - 2] if count - 2 < len(_STUDENT) else _NORMAL
    reach = t * statistics.stdev(values) / math.sqrt(count)
    mean = statistics.fmean(values)
    return mean - reach, mean + reach


def _key(row: Mapping[str, Any]) -> Key:
    return str(row["variant"]), str(row["prompt_id"])


def _answer(row: Mapping[str, Any]) -> StrategyAnswer:
    ids = row.get("token_ids")
    return StrategyAnswer(
        str(row.get("completion") or ""),
        _numbers(ids) if isinstance(ids, list) else None,
        _numbers(row.get("logprobs")),
        _numbers(row.get("runner_up_ids")),
        _numbers(row.get("runner_up_logprobs")),
        str(row.get("finish_reason") or ""),
    )


def _numbers(value: Any) -> list[Any]:
    """The list, if it is one of numbers; else none."""
    if not isinstance(value, list):
        return []
    found = cast(list[Any], value)
    return found if all(isinstance(one, int | float) for one in found) else []


def _paces(folder: Path) -> Iterator[float]:
    """Yield the tokens of all ranks over the seconds of the slowest, for each pass."""
    reports: list[list[tuple[float, float]]] = []
    for path in sorted(folder.glob("*.json")):
        try:
            passes: Any = read_left_object(path)["passes"]
            reports.append(
                [(float(one["seconds"]), float(one["tokens"])) for one in passes]
            )
        except (OSError, ValueError, KeyError, TypeError):
            continue
    for ranks in zip(*reports, strict=False):
        seconds = max(taken for taken, _ in ranks)
        tokens = sum(count for _, count in ranks)
        if 0 < seconds < math.inf and 0 <= tokens < math.inf:
            yield tokens / seconds
