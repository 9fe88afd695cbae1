"""Workloads of the kind of `data/workloads/mixed_*`, made by seed: four GPUs for eight
hours, one model, one script.

Requests are on (0.2 a second) or off (0.005), each for some twenty minutes; scripts
come singly (0.008 a second) and in heaps of 40 to 115, one in half an hour. How long
they take is log-normal, as in the originals.
"""

from collections.abc import Iterator
from random import Random

from gpuyard.residency.workload import Arrival, Model, Script, Workload

END = 28_800.0


def workload(seed: int, wake_s: float | None) -> Workload:
    """One of them."""
    random = Random(seed)
    came = sorted(
        [*_requests(random), *_scripts(random)], key=lambda arrival: arrival.at
    )
    gpus = {f"GPU-{number}": 24.0 for number in range(4)}
    return Workload(
        gpus, {"m": Model(120, wake_s, 5, 20)}, {"s": Script(5, 1, 8)}, came
    )


def _requests(random: Random) -> Iterator[Arrival]:
    at = 0.0
    busy = random.random() < 0.5
    while at < END:
        end = min(at + 120 + random.expovariate(1 / 1200), END)
        for moment in _poisson(random, 0.2 if busy else 0.005, at, end):
            yield Arrival(
                moment, "m", min(max(random.lognormvariate(2.25, 0.8), 1.0), 90.0)
            )
        at = end
        busy = not busy


def _scripts(random: Random) -> Iterator[Arrival]:
    for moment in _poisson(random, 0.008, 0.0, END):
        yield Arrival(moment, "s", min(random.lognormvariate(3.53, 0.7), 450.0))
    for moment in _poisson(random, 1 / 1900, 0.0, END):
        for _ in range(random.randint(40, 115)):
            yield Arrival(moment, "s", min(random.lognormvariate(3.53, 0.7), 450.0))


def _poisson(random: Random, rate: float, begin: float, end: float) -> Iterator[float]:
    at = begin + random.expovariate(rate)
    while at < end:
        yield at
        at += random.expovariate(rate)
