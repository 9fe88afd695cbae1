"""What a strategy's repeats tell: the noise floor of its answers, and of its speed.

The files are `repeats/shard_<rank>.jsonl` and `passes` in each rank's metrics.
"""

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from gpuyard.studies.agreement import Key, StrategyAnswer, compare

# Student's t for an interval of 95 %, by degrees of freedom.
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
_NORMAL = 1.96


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
    for row in _rows(folder / "repeats"):
        passes.setdefault(int(row["repeat"]), {})[_key(row)] = _answer(row)
    if not passes:
        return None
    first = {_key(row): _answer(row) for row in _rows(folder / "outputs")}
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


def _rows(folder: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of all ranks; lines that are damaged are left out."""
    for path in sorted(folder.glob("*.jsonl")):
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                try:
                    row: Any = json.loads(line)
                except ValueError:
                    continue
                if isinstance(row, dict) and {"prompt_id", "variant"} <= row.keys():
                    yield cast(Mapping[str, Any], row)


def _key(row: Mapping[str, Any]) -> Key:
    return str(row["variant"]), str(row["prompt_id"])


def _answer(row: Mapping[str, Any]) -> StrategyAnswer:
    return StrategyAnswer(
        str(row.get("completion") or ""),
        row.get("token_ids"),
        row.get("logprobs") or (),
        row.get("runner_up_ids") or (),
        row.get("runner_up_logprobs") or (),
    )


def _paces(folder: Path) -> Iterator[float]:
    """Yield the tokens of all ranks over the seconds of the slowest, for each pass."""
    reports: list[list[Mapping[str, float]]] = []
    for path in sorted(folder.glob("*.json")):
        try:
            passes: Any = json.loads(path.read_bytes())["passes"]
            reports.append(list(passes))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    for ranks in zip(*reports, strict=False):
        seconds = max(float(one["seconds"]) for one in ranks)
        if seconds > 0:
            yield sum(float(one["tokens"]) for one in ranks) / seconds
