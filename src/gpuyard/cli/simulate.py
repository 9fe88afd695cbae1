"""`gpuyard simulate`: how long the jobs of a trace would take under a policy, in virtual time and without a server."""

import csv
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli.jobs import AsJson
from gpuyard.cli.output import print_json, print_table
from gpuyard.domain.errors import Fault, InvalidInputError
from gpuyard.domain.units import format_duration

if TYPE_CHECKING:
    from gpuyard.scheduler.simulate import TraceJob

COLUMNS = ("job_id", "arrival_s", "gpus", "duration_s", "job_type")
MOST_FAULTS = 10
"""How many faults of a file are told at once."""
MOST_GPUS = 20_000


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(simulate)


def simulate(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help=f"A workload (.json), or a trace with columns {', '.join(COLUMNS)}.")
    ],
    policy: Annotated[
        str,
        typer.Option(help="Of a trace: fcfs, backfill or gittins. Of a workload: cost, threshold, round_robin, lru or "
                          "static."),
    ] = "",
    gpus: Annotated[int | None, typer.Option(help="GPUs of the cluster; a workload names its own.")] = None,
    gpus_per_node: Annotated[
        int, typer.Option(help="GPUs of one node. Gangs may span nodes, so this only has to divide --gpus.")
    ] = 8,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Play a trace of jobs, or a workload of models and scripts, through the scheduler in virtual time."""
    if file.suffix == ".json":
        result = _play_workload(file, policy or "cost")
    else:
        result = _play_trace(file, policy or "gittins", gpus, gpus_per_node)
    if as_json:
        print_json(result)
    else:
        print_table(("FROM ARRIVAL TO END", ""), _told(result), empty="")


def _play_trace(trace: Path, policy: str, gpus: int | None, gpus_per_node: int) -> dict[str, Any]:
    from gpuyard.scheduler import simulate as simulation
    from gpuyard.scheduler.policy import Order, Policy

    if policy not in list(Order):
        raise InvalidInputError.of("--policy", f"there is no policy {policy!r}", f"use one of: {', '.join(Order)}")
    if gpus is None:
        raise InvalidInputError.of("--gpus", "is missing", "say how many GPUs the cluster of the trace has")
    if not 1 <= gpus <= MOST_GPUS:
        raise InvalidInputError.of("--gpus", f"is {gpus}", f"give 1 to {MOST_GPUS}")
    if gpus_per_node < 1 or gpus % gpus_per_node:
        raise InvalidInputError.of("--gpus-per-node", f"is {gpus_per_node}, which does not divide {gpus}",
                                   "give a number of GPUs that whole nodes have")  # fmt: skip
    return simulation.simulate(read_trace(trace), gpus, Policy(order=Order(policy))).summary()


def _play_workload(file: Path, policy: str) -> dict[str, Any]:
    from gpuyard.cli.workload import read_workload
    from gpuyard.scheduler.workload import POLICIES, play

    if policy not in POLICIES:
        raise InvalidInputError.of("--policy", f"there is no policy {policy!r}", f"use one of: {', '.join(POLICIES)}")
    return play(read_workload(file), policy).summary()


def _told(result: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The summary for people: a line a figure."""
    rows: list[tuple[str, Any]] = [("policy", result["policy"])]
    for group in ("jobs", "llm", "script"):
        figures = result.get(group)
        if not figures or not figures["count"]:
            continue
        rows.append((group, figures["count"]))
        rows += [(f"{group} {name}", format_duration(figures[f"{name}_s"]))
                 for name in ("mean", "p50", "p95", "p99", "max") if f"{name}_s" in figures]  # fmt: skip
    rows += [("batch", format_duration(batch["makespan_s"])) for batch in result.get("batches", ())]
    rows += [(name, result[name]) for name in ("loads", "preemptions") if name in result]
    if "switch_gpu_h" in result:
        rows.append(("switching", f"{result['switch_gpu_h']:.2f} GPU h"))
    return [*rows, ("makespan", format_duration(result["makespan_s"])), ("unfinished", result["unfinished"])]


def read_trace(path: Path) -> "list[TraceJob]":
    """The jobs of a CSV file; InvalidInputError names the file, the line and the column of what is wrong."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise InvalidInputError.of(str(path), f"has no column {', '.join(missing)}",
                                           f"its first line must name {', '.join(COLUMNS)}")  # fmt: skip
            return _jobs(path, reader)
    except OSError as error:
        raise InvalidInputError.of(str(path), f"cannot be read: {error.strerror}", "name a CSV file") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidInputError.of(str(path), f"is not a CSV file: {error}", "name a CSV file in UTF-8") from None


def _jobs(path: Path, reader: "csv.DictReader[str]") -> "list[TraceJob]":
    from gpuyard.scheduler.simulate import TraceJob

    jobs: list[TraceJob] = []
    faults: list[Fault] = []
    seen: set[str] = set()
    for row in reader:
        where = f"{path}:{reader.line_num}"
        numbers = {name: _number(row, name, where, faults) for name in ("arrival_s", "gpus", "duration_s")}
        name = row["job_id"]
        if name in seen:
            faults.append(Fault(f"{where}: job_id", f"{name!r} was used before", "give each job an id of its own"))
        seen.add(name)
        if len(faults) >= MOST_FAULTS:
            break
        jobs.append(TraceJob(name, numbers["arrival_s"], int(numbers["gpus"]), numbers["duration_s"], row["job_type"]))
    if faults:
        raise InvalidInputError(faults)
    if not jobs:
        raise InvalidInputError.of(str(path), "has no jobs", "give it a line for each job")
    return jobs


def _number(row: Mapping[str, Any], name: str, where: str, faults: list[Fault]) -> float:
    """The number in a column; what is wrong with it goes into `faults`."""
    text = row[name] or ""
    whole = name == "gpus"
    try:
        value = float(int(text) if whole else text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < (1 if whole else 0):
        remedy = "write a whole number of at least 1" if whole else "write seconds, at least 0"
        faults.append(Fault(f"{where}: {name}", f"is {text!r}" if text else "is empty", remedy))
        return 1.0
    return value
