"""Reading a trace file for `gpuyard simulate`."""

import csv
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuyard.domain.errors import Fault, InvalidInputError

if TYPE_CHECKING:
    from gpuyard.scheduler.simulate import TraceJob

COLUMNS = ("job_id", "arrival_s", "gpus", "duration_s", "job_type")
"""The columns that a trace must have; `project` and `user` may come besides."""
MOST_FAULTS = 10
"""How many faults of a file are reported at once."""


def read_trace(path: Path) -> "list[TraceJob]":
    """The jobs of a CSV file.

    Raises InvalidInputError with the file, line and column of each fault.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            missing = [
                name for name in COLUMNS if name not in (reader.fieldnames or ())
            ]
            if missing:
                raise InvalidInputError.of(
                    str(path),
                    f"has no column {', '.join(missing)}",
                    f"its first line must name {', '.join(COLUMNS)}",
                )
            return _jobs(path, reader)
    except OSError as error:
        raise InvalidInputError.of(
            str(path), f"cannot be read: {error.strerror}", "name a CSV file"
        ) from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidInputError.of(
            str(path), f"is not a CSV file: {error}", "name a CSV file in UTF-8"
        ) from None


def _jobs(path: Path, reader: "csv.DictReader[str]") -> "list[TraceJob]":
    from gpuyard.scheduler.simulate import TraceJob

    jobs: list[TraceJob] = []
    faults: list[Fault] = []
    seen: set[str] = set()
    for row in reader:
        where = f"{path}:{reader.line_num}"
        numbers = {
            name: _number(row, name, where, faults)
            for name in ("arrival_s", "gpus", "duration_s")
        }
        name = row["job_id"]
        if name in seen:
            faults.append(
                Fault(
                    f"{where}: job_id",
                    f"{name!r} was used before",
                    "give each job an id of its own",
                )
            )
        seen.add(name)
        if len(faults) >= MOST_FAULTS:
            break
        jobs.append(
            TraceJob(
                name,
                numbers["arrival_s"],
                int(numbers["gpus"]),
                numbers["duration_s"],
                row["job_type"],
                row.get("project") or "",
                row.get("user") or "",
            )
        )
    if faults:
        raise InvalidInputError(faults)
    if not jobs:
        raise InvalidInputError.of(
            str(path), "has no jobs", "give it a line for each job"
        )
    return jobs


def _number(
    row: Mapping[str, Any], name: str, where: str, faults: list[Fault]
) -> float:
    """The number in a column; a fault in it is added to `faults`."""
    text = row[name] or ""
    is_count = name == "gpus"
    smallest = 1 if is_count else 0
    try:
        value = float(int(text) if is_count else text)
    except ValueError:
        value = math.nan
    if math.isfinite(value) and value >= smallest:
        return value
    problem = f"is {text!r}" if text else "is empty"
    if is_count:
        remedy = "write a whole number of at least 1"
    else:
        remedy = "write seconds, at least 0"
    faults.append(Fault(f"{where}: {name}", problem, remedy))
    return 1.0
