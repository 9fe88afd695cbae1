"""`python -m benchmarks.policies`: each policy on each trace, mean and p99 completion as ratios to strict `fcfs`."""

import json
import subprocess
import sys
from pathlib import Path

DATA = Path(__file__).parent / "data"
TRACES = (("philly_like_1000", 16), ("philly_like_2000", 112))
POLICIES = ("fcfs", "backfill", "gittins")


def play(trace: str, gpus: int, policy: str) -> dict[str, float]:
    """What `gpuyard simulate` says of the jobs."""
    command = [sys.executable, "-m", "gpuyard.cli.entry", "simulate", str(DATA / f"{trace}.csv"),
               "--gpus", str(gpus), "--gpus-per-node", "8", "--policy", policy, "--json"]  # fmt: skip
    answer = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert answer["unfinished"] == 0
    return answer["jobs"]


def main() -> None:
    """Print the table in Markdown."""
    print("| trace | GPUs | policy | mean | × fcfs | p99 | × fcfs |\n|---|---|---|---|---|---|---|")
    for trace, gpus in TRACES:
        base = play(trace, gpus, "fcfs")
        for policy in POLICIES:
            jobs = base if policy == "fcfs" else play(trace, gpus, policy)
            mean, p99 = jobs["mean_s"], jobs["p99_s"]
            print(f"| {trace} | {gpus} | {policy} | {mean:,.0f} s | {mean / base['mean_s']:.3f} "
                  f"| {p99:,.0f} s | {p99 / base['p99_s']:.2f} |")  # fmt: skip


if __name__ == "__main__":
    main()
