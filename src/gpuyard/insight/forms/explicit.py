"""`GPUYARD_METRIC {"step": 10, "total": 100, "loss": 2.5}`: the line of a program that
reports to gpuyard on purpose.

`step`, `total`, `epoch`, `epochs` and `eta_s` say how far it is; any other key with a
number is a metric. A line with invalid JSON, or with a wrong value in a named field, is
only a log line.
"""

import json
from typing import cast

from gpuyard.insight.reading import Confidence, Reading

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
    step = _count(report.pop("step", None))
    total = _count(report.pop("total", None))
    epochs = _count(report.pop("epochs", None))
    epoch = _amount(report.pop("epoch", None))
    eta_s = _amount(report.pop("eta_s", None))
    metrics: dict[str, float] = {}
    for name, value in report.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if 0 < len(name) <= _MAX_NAME:
            metrics[name] = float(value)
    return Reading(
        step=step,
        total=total,
        epoch=epoch,
        epochs=epochs,
        eta_s=eta_s,
        metrics=metrics,
        confidence=Confidence.EXPLICIT,
    )


def _count(value: object) -> int | None:
    """A whole number of at least 0, None for null; ValueError for anything else."""
    amount = _amount(value)
    if amount is None:
        return None
    if not amount.is_integer():
        raise ValueError(f"{value} is not a whole number")
    return int(amount)


def _amount(value: object) -> float | None:
    """A finite number of at least 0, None for null; ValueError for anything else."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value} is not a number")
    if not 0 <= value <= _MAX_COUNT:
        raise ValueError(f"{value} is not from 0 to {_MAX_COUNT}")
    return float(value)
