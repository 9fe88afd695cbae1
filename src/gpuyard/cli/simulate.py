"""`gpuyard simulate`: how long jobs would take under a policy, in virtual time."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from gpuyard.cli.arguments import AsJson
from gpuyard.cli.output import print_json, print_table
from gpuyard.cli.trace import COLUMNS, read_trace
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.units import format_duration

MOST_GPUS = 20_000


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(simulate)


def simulate(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="A workload (.json), or a trace with columns"
            f" {', '.join(COLUMNS)}, and for shares project, user.",
        ),
    ],
    policy: Annotated[
        str,
        typer.Option(
            help="Of a trace: fcfs, backfill, gittins or fair. Of a workload: cost,"
            " threshold, round_robin, lru or static."
        ),
    ] = "",
    gpus: Annotated[
        int | None, typer.Option(help="GPUs of the cluster; a workload names its own.")
    ] = None,
    gpus_per_node: Annotated[
        int,
        typer.Option(
            help="GPUs of one node. Gangs may span nodes, so this only has to divide"
            " --gpus."
        ),
    ] = 8,
    as_json: AsJson = False,
) -> None:
    """Play a trace of jobs, or a workload of models and scripts, through the scheduler
    in virtual time.
    """
    if file.suffix == ".json":
        result = _play_workload(file, policy or "cost")
    else:
        result = _play_trace(file, policy or "gittins", gpus, gpus_per_node)
    if as_json:
        print_json(result)
    else:
        print_table(("FROM ARRIVAL TO END", ""), _rows_of(result), empty="")


def _play_trace(
    trace: Path, policy: str, gpus: int | None, gpus_per_node: int
) -> dict[str, Any]:
    from gpuyard.scheduler import simulate as simulation
    from gpuyard.scheduler.policy import Policy, QueueOrder

    if policy not in list(QueueOrder):
        raise InvalidInputError.of(
            "--policy",
            f"there is no policy {policy!r}",
            f"use one of: {', '.join(QueueOrder)}",
        )
    if gpus is None:
        raise InvalidInputError.of(
            "--gpus", "is missing", "say how many GPUs the cluster of the trace has"
        )
    if not 1 <= gpus <= MOST_GPUS:
        raise InvalidInputError.of("--gpus", f"is {gpus}", f"give 1 to {MOST_GPUS}")
    if gpus_per_node < 1 or gpus % gpus_per_node:
        raise InvalidInputError.of(
            "--gpus-per-node",
            f"is {gpus_per_node}, which does not divide {gpus}",
            "give a number of GPUs that whole nodes have",
        )
    jobs = read_trace(trace)
    return simulation.simulate(jobs, gpus, Policy(order=QueueOrder(policy))).summary()


def _play_workload(file: Path, policy: str) -> dict[str, Any]:
    from gpuyard.cli.workload import read_workload
    from gpuyard.residency.simulation import POLICIES, play

    if policy not in POLICIES:
        raise InvalidInputError.of(
            "--policy",
            f"there is no policy {policy!r}",
            f"use one of: {', '.join(POLICIES)}",
        )
    return play(read_workload(file), policy).summary()


def _rows_of(result: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The summary as rows, one for each figure."""
    rows: list[tuple[str, Any]] = [("policy", result["policy"])]
    for group in ("jobs", "llm", "script"):
        figures = result.get(group)
        if not figures or not figures["count"]:
            continue
        rows.append((group, figures["count"]))
        rows += [
            (f"{group} {name}", format_duration(figures[f"{name}_s"]))
            for name in ("mean", "p50", "p95", "p99", "max")
            if f"{name}_s" in figures
        ]
    rows += [
        ("batch", format_duration(batch["makespan_s"]))
        for batch in result.get("batches", ())
    ]
    rows += [
        (name, result[name]) for name in ("loads", "preemptions") if name in result
    ]
    if "switch_gpu_h" in result:
        rows.append(("switching", f"{result['switch_gpu_h']:.2f} GPU h"))
    return [
        *rows,
        ("makespan", format_duration(result["makespan_s"])),
        ("unfinished", result["unfinished"]),
    ]
