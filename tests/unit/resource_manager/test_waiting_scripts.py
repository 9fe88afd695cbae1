"""Jobs that wait for GPUs, as scripts of a fleet: what the first of several GPUs
reserves, and that thousands of jobs are cheap.
"""

from collections.abc import Iterable

from gpuyard.domain.shape import Shape
from gpuyard.residency.fleet import Fleet, FleetGpu
from gpuyard.residency.switching import SwitchTimes
from gpuyard.resource_manager.waiting_scripts import WaitingScripts

ONE = Shape(gpus=1)
TWO = Shape(gpus=2)
FOUR = Shape(gpus=4)
THIRD = Shape(gpus=1, gpu_uuids=("gpu 2",))


class Looking(Fleet):
    """Counts how often somebody looks whether a script has room."""

    looked = 0

    def has_room(self, gpu: FleetGpu, name: str) -> bool:
        self.looked += 1
        return super().has_room(gpu, name)


def fleet(count: int, *busy: int) -> Looking:
    gpus = {f"gpu {n}": FleetGpu(f"gpu {n}", 24.0) for n in range(count)}
    for n in busy:
        gpus[f"gpu {n}"].worker = "script"
    memory_gb = {"script": 0.0}
    return Looking(gpus, memory_gb, SwitchTimes({}), exclusive_scripts=True)


def suitable(gpus: Iterable[str], shape: Shape) -> frozenset[str]:
    return frozenset(gpus) & frozenset(shape.gpu_uuids or gpus)


def waiting(fleet: Fleet, *shapes: Shape, reserved: str = "") -> list[str]:
    """The GPUs that are reserved when these jobs wait, the first one first."""
    scripts = WaitingScripts(fleet, suitable, reserved)
    for number, shape in enumerate(shapes):
        scripts.add(f"job {number}", shape, 0.0, 1)
    return [gpu.id for gpu in fleet.gpus.values() if gpu.reserved]


def test_the_first_of_several_gpus_reserves_what_is_free():
    made = fleet(3, 0, 1)
    assert waiting(made, TWO, TWO) == ["gpu 2"]
    names = [task.name for task in made.scripts]
    assert names == ["script 0 on "] * 3, "one waits for one more GPU, the next for two"


def test_it_reserves_behind_a_job_that_cannot_have_the_free_ones():
    assert waiting(fleet(3, 1, 2), THIRD, TWO) == ["gpu 0"]


def test_it_leaves_free_gpus_to_the_jobs_before_it():
    assert waiting(fleet(3, 2), ONE, TWO) == ["gpu 1"]
    assert waiting(fleet(2, 1), ONE, TWO) == []
    assert waiting(fleet(3), ONE, TWO) == [], "all of them start at once"
    assert waiting(fleet(4), TWO, FOUR) == ["gpu 2", "gpu 3"]


def test_one_that_has_reserved_keeps_its_gpus_until_it_starts():
    made = fleet(3)
    assert waiting(made, TWO, TWO, reserved="job 0") == ["gpu 0", "gpu 1"]
    assert [task.name for task in made.scripts] == ["script 0 on "] * 2
    assert waiting(fleet(2), TWO, reserved="another") == []


def test_thousands_of_jobs_look_at_each_gpu_a_few_times():
    made = fleet(100, *range(50))
    shapes = [ONE, TWO, THIRD, Shape(gpus=101)]
    jobs = [shapes[n % len(shapes)] for n in range(4000)]
    waiting(made, *jobs)
    assert made.looked < len(jobs)
