"""Workloads that no policy was built with: how the policies do on them, and how well
any policy could do.

The seeds follow from a text that was fixed before anything was measured. Choose no
figure of a policy by these workloads; all other seeds are for that.
"""

import math
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from statistics import mean, stdev

from benchmarks.figures import Rows
from benchmarks.kind import END, workload
from gpuyard.residency.simulation import play
from gpuyard.residency.workload import Workload, WorkloadResult

TEXT = "gpuyard fresh workloads 2026-11"
COUNT = 12
KINDS: dict[str, float | None] = {"boots of 120 s": None, "wakes of 6 s": 6.0}
"""By name: in how many seconds the model wakes, None if it must boot each time."""
POLICIES = ("lru", "cost")


@dataclass(frozen=True)
class Ratios:
    """How many times the figures of `threshold`."""

    requests: float
    scripts: float
    loads: float

    @property
    def product(self) -> float:
        """Of all three; the smaller, the better."""
        return self.requests * self.scripts * self.loads


def seeds(kind: str, count: int = COUNT) -> list[int]:
    """The seeds of the fresh workloads of this kind."""
    digests = [
        sha256(f"{TEXT} {kind} {number}".encode()).digest() for number in range(count)
    ]
    return [int.from_bytes(digest[:8], "big") for digest in digests]


def table(count: int = COUNT) -> Rows:
    """The geometric means for each kind and policy."""
    head = ["workloads", "policy", "requests, p95", "scripts, mean", "loads", "product"]
    rows = [head]
    for kind, wake_s in KINDS.items():
        works = [workload(seed, wake_s) for seed in seeds(kind, count)]
        rules = [play(work, "threshold") for work in works]
        for policy in POLICIES:
            told = [play(work, policy) for work in works]
            rows.append([f"{count} with {kind}", policy, *_cells(told, rules)])
        for name, change in BOUNDS.items():
            told = [play(change(work), "lru") for work in works]
            rows.append([f"{count} with {kind}", name, *_bound(told, rules)])
    return rows


def _cells(
    told: Sequence[WorkloadResult], rules: Sequence[WorkloadResult]
) -> list[str]:
    ratios = [
        Ratios(
            mine.summary()["llm"]["p95_s"] / theirs.summary()["llm"]["p95_s"],
            mine.summary()["script"]["mean_s"] / theirs.summary()["script"]["mean_s"],
            mine.loads / theirs.loads,
        )
        for mine, theirs in zip(told, rules, strict=True)
    ]
    columns = [
        [each.requests for each in ratios],
        [each.scripts for each in ratios],
        [each.loads for each in ratios],
    ]
    products = [each.product for each in ratios]
    cells = [f"{_typical(column):.2f} ×" for column in columns]
    return [*cells, f"{_typical(products):.3f} ± {_error(products):.3f}"]


def _bound(
    told: Sequence[WorkloadResult], rules: Sequence[WorkloadResult]
) -> list[str]:
    """The same without loads, and without the side that was left out."""
    cells: list[str] = []
    for kind, figure in (("llm", "p95_s"), ("script", "mean_s")):
        found = [
            mine.summary()[kind][figure] / theirs.summary()[kind][figure]
            for mine, theirs in zip(told, rules, strict=True)
        ]
        cells.append(f"{_typical(found):.2f} ×" if min(found) else "–")
    return [*cells, "–", "–"]


def _typical(values: Sequence[float]) -> float:
    """The geometric mean: the mean of products is then the product of means."""
    return math.exp(mean(map(math.log, values)))


def _error(values: Sequence[float]) -> float:
    """The standard error of the geometric mean."""
    logs = list(map(math.log, values))
    return _typical(values) * stdev(logs) / math.sqrt(len(logs))


# --- what no policy can do better ---


def without_moves(work: Workload) -> Workload:
    """Models are loaded and unloaded in no time."""
    models = {
        name: replace(model, boot_s=0.0, wake_s=None, unload_s=0.0)
        for name, model in work.models.items()
    }
    return replace(work, models=models)


def requests_alone(work: Workload) -> Workload:
    """There are no scripts, and moves take no time."""
    return _only(without_moves(work), work.models)


def scripts_alone(work: Workload) -> Workload:
    """There are no requests."""
    return _only(work, work.scripts)


def _only(work: Workload, names: Container[str]) -> Workload:
    return replace(
        work, arrivals=[each for each in work.arrivals if each.name in names]
    )


BOUNDS: dict[str, Callable[[Workload], Workload]] = {
    "if moves took no time": without_moves,
    "if there were no scripts": requests_alone,
    "if there were no requests": scripts_alone,
}


def room_table(count: int = COUNT) -> Rows:
    """How much GPU time is left for loading and for idle models."""
    rows = [["workloads", "GPU time for requests and scripts", "left", "that is"]]
    for kind, wake_s in KINDS.items():
        works = [workload(seed, wake_s) for seed in seeds(kind, count)]
        busy = mean(map(_busy, works))
        (model,) = works[0].models.values()
        move_s = (wake_s or model.boot_s) + model.unload_s
        moves = (1 - busy) * END * len(works[0].gpus) / move_s
        left = f"{1 - busy:.1%}"
        rows.append([f"{count} with {kind}", f"{busy:.1%}", left, f"{moves:.0f} loads"])
    return rows


def _busy(work: Workload) -> float:
    """The share of the GPU time that requests and scripts need, with the start and the
    end of each script.
    """
    needed_s = 0.0
    for arrival in work.arrivals:
        needed_s += arrival.duration_s
        if arrival.name in work.scripts:
            script = work.scripts[arrival.name]
            needed_s += script.boot_s + script.exit_s
    return needed_s / (END * len(work.gpus))
