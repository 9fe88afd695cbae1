"""Jobs that wait for GPUs, as scripts of a fleet: what the first of several GPUs
reserves and lends, and that thousands of jobs are cheap.
"""

from collections.abc import Iterable

from gpuyard.domain.shape import Shape
from gpuyard.residency.fleet import Demand, Fleet, FleetGpu, Phase
from gpuyard.residency.policies import (
    DrainResident,
    UnloadModel,
    finish_leaving,
    makes_room,
)
from gpuyard.residency.switching import Switch, SwitchTimes
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


def with_model(count: int, *busy: int) -> Looking:
    """A fleet for which a model is configured that moves in 30 s."""
    made = fleet(count, *busy)
    moves = {("chat", Switch.BOOT): 25.0, ("chat", Switch.UNLOAD): 5.0}
    made.switching = SwitchTimes(moves)
    made.memory_gb = {"script": 0.0, "chat": 16.0}
    made.demand = {"chat": Demand()}
    return made


def lending(
    made: Fleet, *shapes: Shape, busy_s: float, lent: Iterable[str] = ()
) -> WaitingScripts:
    scripts = WaitingScripts(made, suitable, "job 0", frozenset(lent), lambda _: busy_s)
    for number, shape in enumerate(shapes):
        scripts.add(f"job {number}", shape, 0.0, 1)
    return scripts


def test_models_may_use_what_is_reserved_while_a_long_script_has_the_rest():
    made = with_model(2, 0)
    assert lending(made, TWO, ONE, busy_s=61).lent == {"gpu 1"}
    assert made.has_room(made.gpus["gpu 1"], "chat")
    assert [task.name for task in made.scripts] == ["script 1"], "no model leaves"
    assert not made.has_room(made.gpus["gpu 1"], "script 1"), "nor a job behind it"

    made = with_model(2, 0)
    assert lending(made, TWO, busy_s=59).lent == set()
    assert not made.has_room(made.gpus["gpu 1"], "chat")
    assert [task.name for task in made.scripts] == ["script 0 on "]


def test_it_lends_nothing_to_a_model_that_would_never_leave():
    made = with_model(3, 0)
    moves = {
        (model, move): 5.0
        for model in ("chat", "pinned")
        for move in (Switch.BOOT, Switch.UNLOAD)
    }
    made.switching = SwitchTimes(moves)
    made.demand["pinned"] = Demand()
    made.memory_gb = {**made.memory_gb, "pinned": 16.0}
    scripts = WaitingScripts(
        made,
        suitable,
        busy_s=lambda _: 1000.0,
        stays=lambda gpu, model: model == "pinned" and gpu == "gpu 1",
    )
    scripts.add("job", Shape(gpus=3), 0.0, 1)
    assert (scripts.lent, scripts.kept_from) == (
        {"gpu 1", "gpu 2"},
        {"pinned": ["gpu 1"]},
    )
    roomy = [gpu.id for gpu in made.gpus_with_room("pinned")]
    assert roomy == ["gpu 2"]
    made.start_loading("chat", ["gpu 1"], 0.0).phase = Phase.READY
    (chat,) = made.ready()
    assert not makes_room(made, chat, "pinned"), "nor takes it another's place"


def test_it_waits_for_the_last_script_that_it_needs():
    left_s = {"gpu 0": 10.0, "gpu 1": 1000.0}
    for shape, lent in ((TWO, set[str]()), (Shape(gpus=3), {"gpu 2"})):
        scripts = WaitingScripts(
            with_model(3, 0, 1), suitable, busy_s=left_s.__getitem__
        )
        scripts.add("job", shape, 0.0, 1)
        assert scripts.lent == lent


def test_models_leave_what_was_lent_once_the_script_is_over():
    made = with_model(2)
    model = made.start_loading("chat", ["gpu 1"], 0.0)
    scripts = lending(made, TWO, busy_s=0, lent=["gpu 1"])
    assert (scripts.lent, scripts.reserved) == ({"gpu 1"}, ["gpu 0", "gpu 1"])
    assert not made.scripts, "it has all of its GPUs, but for the model"
    assert finish_leaving(made) is None, "it still boots"
    model.phase = Phase.BUSY
    assert finish_leaving(made) == DrainResident("chat", "gpu 1")
    model.phase = Phase.READY
    assert finish_leaving(made) == UnloadModel("chat", "gpu 1")


def test_a_model_that_was_there_before_leaves_only_as_the_policy_says():
    made = with_model(2)
    made.start_loading("chat", ["gpu 1"], 0.0).phase = Phase.READY
    assert lending(made, TWO, busy_s=0).lent == set()
    assert finish_leaving(made) is None
    assert [task.name for task in made.scripts] == ["script 0 on "]


def test_thousands_of_jobs_look_at_each_gpu_a_few_times():
    made = fleet(100, *range(50))
    shapes = [ONE, TWO, THIRD, Shape(gpus=101)]
    jobs = [shapes[n % len(shapes)] for n in range(4000)]
    waiting(made, *jobs)
    assert made.looked < len(jobs)
