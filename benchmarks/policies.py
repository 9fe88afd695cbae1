"""`python -m benchmarks.policies`: each policy on each trace and each workload, beside `fcfs` and `threshold`."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
TRACES = (("philly_like_1000", 16), ("philly_like_2000", 112))
POLICIES = ("fcfs", "backfill", "gittins")
RESIDENCY = ("threshold", "lru", "static", "cost")
BATCHES = ("round_robin", "cost")


def play(trace: str, gpus: int, policy: str) -> dict[str, float]:
    """What `gpuyard simulate` says of the jobs."""
    command = [sys.executable, "-m", "gpuyard.cli.entry", "simulate", str(DATA / f"{trace}.csv"),
               "--gpus", str(gpus), "--gpus-per-node", "8", "--policy", policy, "--json"]  # fmt: skip
    answer = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert answer["unfinished"] == 0
    return answer["jobs"]


def main() -> None:
    """Print the tables in Markdown."""
    print("| trace | GPUs | policy | mean | × fcfs | p99 | × fcfs |\n|---|---|---|---|---|---|---|")
    for trace, gpus in TRACES:
        base = play(trace, gpus, "fcfs")
        for policy in POLICIES:
            jobs = base if policy == "fcfs" else play(trace, gpus, policy)
            mean, p99 = jobs["mean_s"], jobs["p99_s"]
            print(f"| {trace} | {gpus} | {policy} | {mean:,.0f} s | {mean / base['mean_s']:.3f} "
                  f"| {p99:,.0f} s | {p99 / base['p99_s']:.2f} |")  # fmt: skip
    print("\n| workload | policy | requests, p95 | × threshold | scripts, mean | × threshold | loads |")
    print("|---|---|---|---|---|---|---|")
    for path in sorted((DATA / "workloads").glob("mixed*.json")):
        rules = simulated(path, "threshold")
        for policy in RESIDENCY:
            told = rules if policy == "threshold" else simulated(path, policy)
            print(f"| {path.stem} | {policy} | {beside(told, rules, 'llm', 'p95_s')} "
                  f"| {beside(told, rules, 'script', 'mean_s')} | {told['loads']} |")  # fmt: skip
    print("\n| batch | policy | until the last model is back |\n|---|---|---|")
    for path in sorted((DATA / "workloads").glob("s1*.json")):
        for policy in BATCHES:
            (batch,) = simulated(path, policy)["batches"]
            print(f"| {path.stem} | {policy} | {batch['makespan_s']:,.0f} s |")


def simulated(path: Path, policy: str) -> dict[str, Any]:
    """What `gpuyard simulate` says of a workload."""
    command = [sys.executable, "-m", "gpuyard.cli.entry", "simulate", str(path), "--policy", policy, "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def beside(told: dict[str, Any], rules: dict[str, Any], kind: str, figure: str) -> str:
    """A figure, and how many times that of the rules it is."""
    mine, theirs = told[kind][figure], rules[kind][figure]
    return f"{mine:,.0f} s | {mine / theirs:.2f}"


if __name__ == "__main__":
    main()
