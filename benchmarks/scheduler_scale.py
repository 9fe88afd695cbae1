"""How the scheduler scales: bytes per queued job, and the time of one decision. Prints figures and asserts nothing.

Run: `python benchmarks/scheduler_scale.py [JOBS]`. The queue holds JOBS jobs (100,000) of 20 shapes and 5 priorities.
"""

import sys
import time
import tracemalloc
from collections.abc import Callable

from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.domain.ids import new_id
from gpuyard.domain.shape import Placement, Shape
from gpuyard.scheduler.decide import decide, undo
from gpuyard.scheduler.observe import observe
from gpuyard.scheduler.policy import Policy
from gpuyard.scheduler.view import View
from gpuyard.scheduler.why import why

NOW = 1_800_000_000.0
SHAPES = [Shape(cpus=float(cpus), memory_gb=8.0, gpus=gpus) for gpus in (0, 1, 2, 4, 8) for cpus in (1, 2, 4, 8)]
POLICY = Policy()


def submitted(number: int) -> Event:
    """The event of one new job; every row is made anew, as it is when it comes from the ledger or the network."""
    job_id = new_id("job")
    row = {"state": "queued", "priority": 1 + number % 5, "shape": SHAPES[number % len(SHAPES)].to_row(),
           "created_at": NOW + number * 1e-3, "not_before": None, "timeout_s": 3600.0 + number,
           "estimated_duration_s": None, "project": f"team-{number % 10}", "preemptible": False,
           "depends_on": []}  # fmt: skip
    return Event(EventKind.JOB_SUBMITTED, NOW, (Change(Table.JOBS, job_id, row),), job_id)


def add_nodes(view: View, nodes: int) -> None:
    """Nodes of 8 GPUs and 64 cores, all full."""
    for number in range(nodes):
        node_id = f"node_{number:04d}"
        row = {"name": node_id, "provider": "agents", "state": "online", "cpus": 64, "memory_gb": 512}
        changes = [Change(Table.NODES, node_id, row)]
        for index in range(8):
            gpu = {"node_id": node_id, "index": index, "name": "NVIDIA L4", "memory_mb": 23034,
                   "compute_capability": "8.9", "state": "idle"}  # fmt: skip
            changes.append(Change(Table.GPUS, f"{node_id}-gpu-{index}", gpu))
            share = Placement(node_id, (f"{node_id}-gpu-{index}",), 8.0, 64.0)
            attempt = {"job_id": f"job_r{number}-{index}", "state": "running", "token": 1, "created_at": NOW,
                       "started_at": NOW, "placements": [share.to_row()]}  # fmt: skip
            changes.append(Change(Table.ATTEMPTS, f"attempt_{number}-{index}", attempt))
        observe(view, Event(EventKind.NODE_CHANGED, NOW, tuple(changes)))


def microseconds(work: Callable[[], object], times: int) -> float:
    """The best of five rounds, so that other processes on the machine disturb little."""
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(times):
            work()
        best = min(best, (time.perf_counter() - began) / times)
    return best * 1e6


def decide_and_undo(view: View, now: float) -> int:
    """One decision, taken back, so that the next finds the same view."""
    actions = decide(view, now, POLICY).actions
    for action in actions:
        undo(view, action)
    return len(actions)


def main(jobs: int) -> None:
    """Fill a view, then measure."""
    tracemalloc.start()
    view = View()
    before, _ = tracemalloc.get_traced_memory()
    for number in range(jobs):
        observe(view, submitted(number))
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    print(f"memory: {(after - before) / jobs:.0f} B per queued job, {(after - before) / 1e6:.1f} MB for {jobs:,}")

    event = submitted(jobs)
    print(f"observe a submission: {microseconds(lambda: observe(view, event), 2000):.1f} µs")
    later = NOW + 3600
    for nodes in (1, 10, 100):
        add_nodes(view, nodes)
        busy = microseconds(lambda: decide_and_undo(view, later), 20)
        print(f"decide, {nodes} full nodes: {busy:.0f} µs")
    freed = {"state": "ended"}
    observe(view, Event(EventKind.JOB_COMPLETED, NOW, (Change(Table.ATTEMPTS, "attempt_0-0", freed),)))
    one = microseconds(lambda: decide_and_undo(view, later), 20)
    print(f"decide, one GPU of 800 free ({decide_and_undo(view, later)} started): {one:.0f} µs")
    waiting = next(iter(view.queue)).id
    print(f"why: {microseconds(lambda: why(view, waiting, later, POLICY), 1) / 1000:.0f} ms")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
