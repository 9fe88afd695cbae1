"""What came of a strategy under load: latencies, throughput and goodput at each rate.

The files are `load/load_rank_<rank>.jsonl`, a line for each request.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from gpuyard.studies.left_files import LeftLines, most_lines
from gpuyard.studies.runtime.load_generator import poisson_arrivals
from gpuyard.studies.runtime.prompts import Prompt

_ROUNDING_MS = 0.01
_ROUNDING_S = 1e-6
_MOST_ARRIVALS = 10_000_000
"""More are not drawn again: that would take minutes."""

_NotNegative = Annotated[float, msgspec.Meta(ge=0)]


class LoadRow(msgspec.Struct, frozen=True):
    """A request: when it came, in seconds, and its times from then."""

    rate: Annotated[float, msgspec.Meta(gt=0)]
    arrived_s: _NotNegative
    ttft_ms: _NotNegative
    latency_ms: _NotNegative
    tokens: Annotated[int, msgspec.Meta(ge=0)]
    tpot_ms: _NotNegative | None = None


class _Asked(msgspec.Struct, frozen=True):
    """What a study asks for under load; see `LoadSection`."""

    rates: list[Annotated[float, msgspec.Meta(gt=0)]]
    requests: Annotated[int, msgspec.Meta(gt=0)]
    seed: int = 0


_decode_row = msgspec.json.Decoder(LoadRow).decode


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


@dataclass(frozen=True, slots=True)
class LoadFindings:
    """The figures at each rate, and in `faults` what is wrong with the files."""

    figures: tuple[LoadFigures, ...] = ()
    faults: tuple[str, ...] = ()


def read_load(
    folder: Path, load: Mapping[str, Any], most_tokens: int | None = None
) -> LoadFindings:
    """Read what a strategy left in its folder; nothing if it was under no load.

    `load` is the section of the study: it may have `rates`, `requests` and `seed`, by
    which is known what must be there, and the limits `ttft_limit_ms` and
    `tpot_limit_ms`. `most_tokens` is what a request was asked for at most.
    """
    drawn = _drawn(load)
    by_rate: dict[float, list[LoadRow]] = {rate: [] for rate in drawn}
    is_known = bool(drawn)
    damaged = 0
    lines = LeftLines(folder, "load", most_lines(sum(map(len, drawn.values()))))
    for line in lines:
        row = _row_of(line, most_tokens)
        if row is None or (is_known and row.rate not in by_rate):
            damaged += 1
        else:
            by_rate.setdefault(row.rate, []).append(row)
    if not is_known and not by_rate:
        return LoadFindings()
    faults = [*lines.faults, *_missing(drawn, by_rate)]
    if damaged:
        faults.append(f"{damaged} lines under load are no possible requests")
    figures = [
        figures_of(rate, rows, load) for rate, rows in sorted(by_rate.items()) if rows
    ]
    return LoadFindings(tuple(figures), tuple(faults))


def figures_of(
    rate: float, rows: Sequence[LoadRow], limits: Mapping[str, Any]
) -> LoadFigures:
    """Return the figures of the requests at one rate."""
    first_s = min(row.arrived_s for row in rows)
    last_s = max(row.arrived_s + row.latency_ms / 1000 for row in rows)
    seconds = max(last_s - first_s, 1e-9)
    kept = [row for row in rows if _keeps(row, limits)]
    ttft_ms = [row.ttft_ms for row in rows]
    tpot_ms = [row.tpot_ms for row in rows if row.tpot_ms is not None]
    return LoadFigures(
        rate,
        len(rows),
        len(rows) / seconds,
        sum(row.tokens for row in rows) / seconds,
        len(kept) / seconds,
        *_percentiles(ttft_ms),
        *_percentiles(tpot_ms),
    )


def _row_of(line: bytes, most_tokens: int | None) -> LoadRow | None:
    """Return the request of a line; None where it is damaged, or cannot be."""
    try:
        row = _decode_row(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    is_too_long = most_tokens is not None and row.tokens > most_tokens
    if is_too_long or row.ttft_ms > row.latency_ms + _ROUNDING_MS:
        return None
    return row


def _drawn(load: Mapping[str, Any]) -> dict[float, list[float]]:
    """When requests come, by rate, in seconds.

    Nothing if the section does not tell, or asks for more than can be drawn again.
    """
    try:
        asked = msgspec.convert(load, _Asked)
    except msgspec.ValidationError:
        return {}
    if len(asked.rates) * asked.requests > _MOST_ARRIVALS:
        return {}
    nobody = Prompt("", "", ())
    return {
        rate: [
            one.at_s
            for one in poisson_arrivals([nobody], rate, asked.requests, asked.seed)
        ]
        for rate in asked.rates
    }


def _missing(
    drawn: Mapping[float, Sequence[float]], by_rate: Mapping[float, Sequence[LoadRow]]
) -> Iterator[str]:
    """Compare the requests with those that were drawn: their number and their times."""
    for rate, wanted_s in sorted(drawn.items()):
        times_s = sorted(row.arrived_s for row in by_rate[rate])
        if len(times_s) != len(wanted_s):
            yield (
                f"at {rate:g} requests/s there are {len(times_s)} of {len(wanted_s)}"
                " requests"
            )
            continue
        off_s = (abs(one - other) for one, other in zip(times_s, wanted_s, strict=True))
        if max(off_s) > _ROUNDING_S:
            yield f"at {rate:g} requests/s requests came at other times than were drawn"


def _percentiles(
    values: list[float],
) -> tuple[float | None, float | None, float | None]:
    if not values:
        return None, None, None
    half, most, nearly_all = np.percentile(values, [50, 90, 99]).tolist()
    return half, most, nearly_all


def _keeps(row: LoadRow, limits: Mapping[str, Any]) -> bool:
    """Whether a request kept the limits; one without further tokens has no TPOT."""
    pairs = (
        (limits.get("ttft_limit_ms"), row.ttft_ms),
        (limits.get("tpot_limit_ms"), row.tpot_ms),
    )
    return all(
        limit is None or value is None or value <= limit for limit, value in pairs
    )
