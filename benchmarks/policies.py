"""`python -m benchmarks.policies [--write]`: each policy on each trace and each
workload, beside `fcfs` and `threshold`.

`--write` puts the tables into docs/benchmarks.md.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import fresh
from benchmarks.figures import write_into_page

DATA = Path(__file__).parent / "data"
TRACES = (("philly_like_1000", 16), ("philly_like_2000", 112))
POLICIES = ("fcfs", "backfill", "gittins")
RESIDENCY = ("threshold", "lru", "static", "cost")
BATCHES = ("round_robin", "cost")


def play(trace: str, gpus: int, policy: str) -> dict[str, float]:
    """What `gpuyard simulate` says of the jobs."""
    command = [
        sys.executable,
        "-m",
        "gpuyard.cli.entry",
        "simulate",
        str(DATA / f"{trace}.csv"),
        "--gpus",
        str(gpus),
        "--gpus-per-node",
        "8",
        "--policy",
        policy,
        "--json",
    ]
    answer = json.loads(
        subprocess.run(command, check=True, capture_output=True, text=True).stdout
    )
    assert answer["unfinished"] == 0
    return answer["jobs"]


def traces() -> str:
    """Each policy for jobs on each trace."""
    lines = [
        "| trace | GPUs | policy | mean | × fcfs | p99 | × fcfs |",
        "|---|---|---|---|---|---|---|",
    ]
    for trace, gpus in TRACES:
        base = play(trace, gpus, "fcfs")
        for policy in POLICIES:
            jobs = base if policy == "fcfs" else play(trace, gpus, policy)
            mean = jobs["mean_s"]
            p99 = jobs["p99_s"]
            lines.append(
                f"| {trace} | {gpus} | {policy} | {mean:,.0f} s |"
                f" {mean / base['mean_s']:.3f} | {p99:,.0f} s |"
                f" {p99 / base['p99_s']:.2f} |"
            )
    return "\n".join(lines)


def committed() -> str:
    """Each residency policy on each workload of `data/workloads/`."""
    lines = [
        "| workload | policy | requests, p95 | × threshold | scripts, mean |"
        " × threshold | loads |",
        "|---|---|---|---|---|---|---|",
    ]
    for path in sorted((DATA / "workloads").glob("mixed*.json")):
        rules = simulated(path, "threshold")
        for policy in RESIDENCY:
            told = rules if policy == "threshold" else simulated(path, policy)
            lines.append(
                f"| {path.stem} | {policy} | {beside(told, rules, 'llm', 'p95_s')} "
                f"| {beside(told, rules, 'script', 'mean_s')} | {told['loads']} |"
            )
    return "\n".join(lines)


def batches() -> str:
    """How long the batches of `data/workloads/` take."""
    lines = [
        "| batch | policy | until the last model is back |",
        "|---|---|---|",
    ]
    for path in sorted((DATA / "workloads").glob("s1*.json")):
        for policy in BATCHES:
            (batch,) = simulated(path, policy)["batches"]
            lines.append(f"| {path.stem} | {policy} | {batch['makespan_s']:,.0f} s |")
    return "\n".join(lines)


def simulated(path: Path, policy: str) -> dict[str, Any]:
    """What `gpuyard simulate` says of a workload."""
    command = [
        sys.executable,
        "-m",
        "gpuyard.cli.entry",
        "simulate",
        str(path),
        "--policy",
        policy,
        "--json",
    ]
    return json.loads(
        subprocess.run(command, check=True, capture_output=True, text=True).stdout
    )


def beside(told: dict[str, Any], rules: dict[str, Any], kind: str, figure: str) -> str:
    """A figure, and how many times that of the rules it is."""
    mine = told[kind][figure]
    theirs = rules[kind][figure]
    return f"{mine:,.0f} s | {mine / theirs:.2f}"


TABLES: Mapping[str, Callable[[], str]] = {
    "traces": traces,
    "committed": committed,
    "fresh": fresh.table,
    "room": fresh.room_table,
    "batches": batches,
}
"""By the name of their place in docs/benchmarks.md."""


def main() -> None:
    """Print the tables in Markdown."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.policies", description=__doc__
    )
    parser.add_argument(
        "tables", nargs="*", metavar="TABLE", help=f"{' '.join(TABLES)}; by default all"
    )
    parser.add_argument(
        "--write", action="store_true", help="put the tables into docs/benchmarks.md"
    )
    arguments = parser.parse_args()
    unknown = set(arguments.tables) - set(TABLES)
    if unknown:
        parser.error(
            f"there is no table {', '.join(sorted(unknown))}; there are"
            f" {', '.join(TABLES)}"
        )
    for name in arguments.tables or TABLES:
        text = TABLES[name]()
        print(f"{text}\n", flush=True)
        if arguments.write:
            write_into_page(name, text)


if __name__ == "__main__":
    main()
