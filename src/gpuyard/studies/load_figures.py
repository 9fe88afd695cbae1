"""What came of a strategy under load: latencies, throughput and goodput at each rate.

The files are `load/load_rank_<rank>.jsonl`, a line for each request.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

_NEEDED = {"rate", "arrived_s", "ttft_ms", "latency_ms", "tokens"}


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """What came of the requests at one rate (requests per second).

    Percentiles are of TTFT (until the first token) and TPOT (for each further token),
    in milliseconds, counted from when a request came. `requests_per_s` and
    `tokens_per_s` are over the time from the first request to the last answer, and so
    is `goodput`: the requests per second that kept all limits.
    """

    rate: float
    requests: int
    requests_per_s: float
    tokens_per_s: float
    goodput: float
    ttft_ms_p50: float | None
    ttft_ms_p90: float | None
    ttft_ms_p99: float | None
    tpot_ms_p50: float | None
    tpot_ms_p90: float | None
    tpot_ms_p99: float | None


def read_load(folder: Path, limits: Mapping[str, Any]) -> tuple[LoadFigures, ...]:
    """Read what a strategy left in its folder; nothing if it was under no load.

    `limits` may have `ttft_limit_ms` and `tpot_limit_ms`.
    """
    by_rate: dict[float, list[Mapping[str, Any]]] = {}
    for row in _rows(folder / "load"):
        by_rate.setdefault(float(row["rate"]), []).append(row)
    return tuple(
        figures_of(rate, rows, limits) for rate, rows in sorted(by_rate.items())
    )


def figures_of(
    rate: float, rows: Sequence[Mapping[str, Any]], limits: Mapping[str, Any]
) -> LoadFigures:
    """Return the figures of the requests at one rate."""
    first_s = min(row["arrived_s"] for row in rows)
    last_s = max(row["arrived_s"] + row["latency_ms"] / 1000 for row in rows)
    seconds = max(last_s - first_s, 1e-9)
    kept = [row for row in rows if _keeps(row, limits)]
    ttft_ms = [row["ttft_ms"] for row in rows]
    tpot_ms = [row["tpot_ms"] for row in rows if row.get("tpot_ms") is not None]
    return LoadFigures(
        rate,
        len(rows),
        len(rows) / seconds,
        sum(row["tokens"] for row in rows) / seconds,
        len(kept) / seconds,
        *_percentiles(ttft_ms),
        *_percentiles(tpot_ms),
    )


def _percentiles(
    values: list[float],
) -> tuple[float | None, float | None, float | None]:
    if not values:
        return None, None, None
    half, most, nearly_all = np.percentile(values, [50, 90, 99]).tolist()
    return half, most, nearly_all


def _keeps(row: Mapping[str, Any], limits: Mapping[str, Any]) -> bool:
    """Whether a request kept the limits; one without further tokens has no TPOT."""
    for name in ("ttft", "tpot"):
        limit = limits.get(f"{name}_limit_ms")
        value = row.get(f"{name}_ms")
        if limit is not None and value is not None and value > limit:
            return False
    return True


def _rows(folder: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of all ranks; lines that are damaged are left out."""
    for path in sorted(folder.glob("*.jsonl")):
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                try:
                    row: Any = json.loads(line)
                except ValueError:
                    continue
                if isinstance(row, dict) and row.keys() >= _NEEDED:
                    yield cast(Mapping[str, Any], row)
