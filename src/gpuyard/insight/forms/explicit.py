"""`GPUYARD_METRIC {"step": 10, "total": 100, "loss": 2.5}`: the line of a program that reports to gpuyard on purpose.

`step`, `total`, `epoch`, `epochs` and `eta_s` say how far it is; any other key with a number is a metric. A line whose
JSON or whose named fields are not what they should be is only a log line.
"""

import json
from typing import cast

from gpuyard.insight.reading import Reading, Trust

MARK = "GPUYARD_METRIC"

_MAX_COUNT = 10**15
_MAX_NAME = 64


def read(line: str) -> Reading | None:
    """The report in `line`; text before the mark, as loggers put it, is allowed."""
    _, mark, body = line.partition(MARK)
    if not mark:
        return None
    try:
        report = json.loads(body)
        if not isinstance(report, dict):
            return None
        return _reading(cast(dict[str, object], report))
    except (ValueError, OverflowError, RecursionError):
        return None


def _reading(report: dict[str, object]) -> Reading | None:
    step, total, epochs = (_count(report.pop(name, None)) for name in ("step", "total", "epochs"))
    epoch, eta_s = (_amount(report.pop(name, None)) for name in ("epoch", "eta_s"))
    metrics = {
        name: float(value)
        for name, value in report.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < len(name) <= _MAX_NAME
    }
    return Reading(
        step=step, total=total, epoch=epoch, epochs=epochs, eta_s=eta_s, metrics=metrics, trust=Trust.EXPLICIT
    )


def _count(value: object) -> int | None:
    """A whole number from 0; ValueError for anything else but null."""
    amount = _amount(value)
    if amount is None:
        return None
    if not amount.is_integer():
        raise ValueError(f"{value} is not a whole number")
    return int(amount)


def _amount(value: object) -> float | None:
    """A finite number from 0; ValueError for anything else but null."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MAX_COUNT:
        raise ValueError(f"{value} is not a number from 0")
    return float(value)
