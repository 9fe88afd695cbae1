"""`python -m benchmarks.policies`: each policy on each trace and each workload, beside
`fcfs` and `threshold`.
"""

import json
import subprocess
import sys
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.kind import workload
from gpuyard.residency.simulation import play as play_workload

DATA = Path(__file__).parent / "data"
TRACES = (("philly_like_1000", 16), ("philly_like_2000", 112))
POLICIES = ("fcfs", "backfill", "gittins")
RESIDENCY = ("threshold", "lru", "static", "cost")
OTHERS = 12
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


def main() -> None:
    """Print the tables in Markdown."""
    print(
        "| trace | GPUs | policy | mean | × fcfs | p99 | × fcfs"
        " |\n|---|---|---|---|---|---|---|"
    )
    for trace, gpus in TRACES:
        base = play(trace, gpus, "fcfs")
        for policy in POLICIES:
            jobs = base if policy == "fcfs" else play(trace, gpus, policy)
            mean = jobs["mean_s"]
            p99 = jobs["p99_s"]
            print(
                f"| {trace} | {gpus} | {policy} | {mean:,.0f} s |"
                f" {mean / base['mean_s']:.3f} | {p99:,.0f} s |"
                f" {p99 / base['p99_s']:.2f} |"
            )
    print(
        "\n| workload | policy | requests, p95 | × threshold | scripts, mean | ×"
        " threshold | loads |"
    )
    print("|---|---|---|---|---|---|---|")
    for path in sorted((DATA / "workloads").glob("mixed*.json")):
        rules = simulated(path, "threshold")
        for policy in RESIDENCY:
            told = rules if policy == "threshold" else simulated(path, policy)
            print(
                f"| {path.stem} | {policy} | {beside(told, rules, 'llm', 'p95_s')} "
                f"| {beside(told, rules, 'script', 'mean_s')} | {told['loads']} |"
            )
    for wake_s in (None, 6.0):
        others(wake_s)
    print("\n| batch | policy | until the last model is back |\n|---|---|---|")
    for path in sorted((DATA / "workloads").glob("s1*.json")):
        for policy in BATCHES:
            (batch,) = simulated(path, policy)["batches"]
            print(f"| {path.stem} | {policy} | {batch['makespan_s']:,.0f} s |")


def others(wake_s: float | None) -> None:
    """The means of the same ratios over workloads of the same kind, made by seed."""
    ratios: dict[str, list[tuple[float, ...]]] = {
        policy: [] for policy in ("lru", "cost")
    }
    for seed in range(OTHERS):
        made = workload(seed, wake_s)
        rules = play_workload(made, "threshold").summary()
        for policy, found in ratios.items():
            told = play_workload(made, policy).summary()
            figures = (("llm", "p95_s"), ("script", "mean_s"))
            both = [
                told[kind][figure] / rules[kind][figure] for kind, figure in figures
            ]
            found.append((*both, told["loads"] / rules["loads"]))
    name = (
        f"{OTHERS} others,"
        f" {'boots of 120 s' if wake_s is None else f'wakes of {wake_s:g} s'}"
    )
    for policy, found in ratios.items():
        p95, script, loads = (mean(values) for values in zip(*found, strict=True))
        print(f"| {name} | {policy} | | {p95:.2f} | | {script:.2f} | {loads:.2f} × |")


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


if __name__ == "__main__":
    main()
