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
from benchmarks.figures import Rows, markdown_table
from benchmarks.page import computed_by, store_table

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


def traces() -> Rows:
    """Each policy for jobs on each trace."""
    rows = [["trace", "GPUs", "policy", "mean", "× fcfs", "p99", "× fcfs"]]
    for trace, gpus in TRACES:
        base = play(trace, gpus, "fcfs")
        for policy in POLICIES:
            jobs = base if policy == "fcfs" else play(trace, gpus, policy)
            mean = jobs["mean_s"]
            p99 = jobs["p99_s"]
            rows.append(
                [
                    trace,
                    str(gpus),
                    policy,
                    f"{mean:,.0f} s",
                    f"{mean / base['mean_s']:.3f}",
                    f"{p99:,.0f} s",
                    f"{p99 / base['p99_s']:.2f}",
                ]
            )
    return rows


def committed() -> Rows:
    """Each residency policy on each workload of `data/workloads/`."""
    beside_threshold = "× threshold"
    rows = [
        [
            "workload",
            "policy",
            "requests, p95",
            beside_threshold,
            "scripts, mean",
            beside_threshold,
            "loads",
        ]
    ]
    for path in sorted((DATA / "workloads").glob("mixed*.json")):
        rules = simulated(path, "threshold")
        for policy in RESIDENCY:
            told = rules if policy == "threshold" else simulated(path, policy)
            rows.append(
                [
                    path.stem,
                    policy,
                    *beside(told, rules, "llm", "p95_s"),
                    *beside(told, rules, "script", "mean_s"),
                    str(told["loads"]),
                ]
            )
    return rows


def batches() -> Rows:
    """How long the batches of `data/workloads/` take."""
    rows = [["batch", "policy", "until the last model is back"]]
    for path in sorted((DATA / "workloads").glob("s1*.json")):
        for policy in BATCHES:
            (batch,) = simulated(path, policy)["batches"]
            rows.append([path.stem, policy, f"{batch['makespan_s']:,.0f} s"])
    return rows


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


def beside(
    told: dict[str, Any], rules: dict[str, Any], kind: str, figure: str
) -> list[str]:
    """A figure, and how many times that of the rules it is."""
    mine = told[kind][figure]
    theirs = rules[kind][figure]
    return [f"{mine:,.0f} s", f"{mine / theirs:.2f}"]


TABLES: Mapping[str, Callable[[], Rows]] = {
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
        rows = TABLES[name]()
        print(f"{markdown_table(rows)}\n", flush=True)
        if arguments.write:
            store_table(
                name, computed_by(f"python -m benchmarks.policies {name}"), rows
            )


if __name__ == "__main__":
    main()
