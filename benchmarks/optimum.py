"""`python -m benchmarks.optimum [SEEDS] [--write]`: `cost` beside the best there is, on instances small
enough to try everything.

Two kinds. A batch: all items known, each GPU's model to be back at the end, loads one
at a time; measured is the time until all is done. A mix: requests and scripts that come
over some minutes; measured is the mean time until each is done. The best knows all
durations and every arrival that will be, but does nothing for anybody before it comes.
"""

import argparse
import math
from collections.abc import Iterator, Sequence
from itertools import permutations, product
from random import Random
from statistics import mean

from benchmarks.figures import Rows, markdown_table
from benchmarks.page import computed_by, store_table
from gpuyard.residency.simulation import play
from gpuyard.residency.workload import Arrival, BatchArrival, Model, Script, Workload

SCRIPT = Script(boot_s=5, exit_s=1, memory_gb=8)
SEEDS = 200


# --- batches ---


def batch(seed: int) -> Workload:
    """Two or three GPUs with a model each; as many items as can be tried in every
    way.
    """
    random = Random(seed)
    gpus = random.choice((2, 3))
    items = tuple(
        round(random.lognormvariate(3.6, 0.7), 1)
        for _ in range(random.randint(1, 9 if gpus == 2 else 7))
    )
    model = Model(random.choice((20, 60, 120)), random.choice((None, 6)), 5, 20)
    names = [f"g{number}" for number in range(gpus)]
    return Workload(
        dict.fromkeys(names, 24.0),
        {"m": model},
        {"s": SCRIPT},
        initial=dict.fromkeys(names, "m"),
        batches=[BatchArrival(0, "s", items, exclusive=True, reload=True)],
        serial_loads=True,
    )


def best_batch(work: Workload) -> float:
    """Every way to deal the items to the GPUs; a GPU that gets none keeps its model."""
    (arrival,) = work.batches
    (model,) = work.models.values()
    gpus = len(work.gpus)
    least = math.inf
    for dealt in product(range(gpus), repeat=len(arrival.items)):
        if any(
            gpu > max(dealt[:place], default=-1) + 1 for place, gpu in enumerate(dealt)
        ):
            continue  # another way with its GPUs in another order
        sums: dict[int, float] = {}
        for item, gpu in zip(arrival.items, dealt, strict=True):
            sums[gpu] = sums.get(gpu, 0.0) + item
        dry = sorted(
            model.unload_s + SCRIPT.boot_s + work_s + SCRIPT.exit_s
            for work_s in sums.values()
        )
        least = min(least, _all_back(dry, model))
    return least


def _all_back(dry: Sequence[float], model: Model) -> float:
    if model.wake_s is not None:
        return dry[-1] + model.wake_s
    back = 0.0
    for at in dry:
        back = max(back, at) + model.boot_s
    return back


# --- mixes ---


def mix(seed: int) -> Workload:
    """Two GPUs, one of which has a model; up to six requests and scripts within five
    minutes.
    """
    random = Random(seed)
    model = Model(random.choice((20, 60, 120)), None, 5, 20)
    arrivals = sorted(
        (
            Arrival(
                round(random.uniform(0, 300), 1),
                random.choice("mms"),
                round(random.lognormvariate(3, 0.7), 1),
            )
            for _ in range(random.randint(2, 6))
        ),
        key=lambda arrival: arrival.at,
    )
    return Workload(
        {"g0": 24.0, "g1": 24.0},
        {"m": model},
        {"s": SCRIPT},
        arrivals,
        initial={"g0": "m"},
    )


def best_mix(work: Workload) -> float:
    """Every order of the tasks on one GPU and of the others on the other; the mean time
    until each is done.
    """
    tasks = range(len(work.arrivals))
    return min(
        sum(_leg(work, order[:cut], loaded=True))
        + sum(_leg(work, order[cut:], loaded=False))
        for order in permutations(tasks)
        for cut in range(len(order) + 1)
    ) / len(tasks)


def _leg(work: Workload, order: Sequence[int], *, loaded: bool) -> Iterator[float]:
    """How long each task of a GPU takes from its arrival."""
    model = work.models["m"]
    at = 0.0
    for number in order:
        task = work.arrivals[number]
        at = max(at, task.at)
        if task.name == "m":
            at += task.duration_s + (0.0 if loaded else model.boot_s)
            yield at - task.at
        else:
            at += SCRIPT.boot_s + task.duration_s + (model.unload_s if loaded else 0.0)
            yield at - task.at
            at += SCRIPT.exit_s
        loaded = task.name == "m"


def table(seeds: Sequence[int]) -> Rows:
    """Each policy beside the best there is."""
    rows = [["instances", "policy", "mean × best", "worst × best"]]
    for policy in ("cost", "round_robin"):
        ratios = [
            play(batch(seed), policy).batches[0] / best_batch(batch(seed))
            for seed in seeds
        ]
        rows.append(row(f"{len(seeds)} batches", policy, ratios))
    for policy in ("cost", "threshold", "lru"):
        ratios: list[float] = []
        for seed in seeds:
            outcome = play(mix(seed), policy)
            ratios.append(mean([*outcome.llm, *outcome.script]) / best_mix(mix(seed)))
        rows.append(row(f"{len(seeds)} mixes", policy, ratios))
    return rows


def row(instances: str, policy: str, ratios: Sequence[float]) -> list[str]:
    """One line of the table."""
    return [instances, policy, f"{mean(ratios):.3f}", f"{max(ratios):.3f}"]


def main() -> None:
    """Print the table in Markdown."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.optimum", description=__doc__
    )
    parser.add_argument("seeds", nargs="?", type=int, default=SEEDS, help="how many")
    parser.add_argument(
        "--write", action="store_true", help="put the table into docs/benchmarks.md"
    )
    arguments = parser.parse_args()
    rows = table(range(arguments.seeds))
    print(markdown_table(rows))
    if arguments.write:
        command = f"python -m benchmarks.optimum {arguments.seeds}"
        store_table("optimum", computed_by(command), rows)


if __name__ == "__main__":
    main()
