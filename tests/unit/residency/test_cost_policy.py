"""The policy `cost`: the waiting that a move saves against the waiting that it causes,
by hand and in single steps.
"""

import math
from collections import deque

import pytest

from gpuyard.residency.cost_policy import CostPolicy
from gpuyard.residency.expected_wait import (
    caused_to_scripts,
    saved_by_first_load,
    saved_by_load,
)
from gpuyard.residency.fleet import (
    Demand,
    Fleet,
    FleetGpu,
    FleetResident,
    Phase,
    WaitingTask,
)
from gpuyard.residency.policies import LoadModel, RunScript, UnloadModel
from gpuyard.residency.simulation import play
from gpuyard.residency.switching import Switch, SwitchTimes
from gpuyard.residency.workload import Arrival, Model, Script, Workload

NOW = 10_000.0
SCRIPT = "script"


def demand(waiting: int, rate: float = 0.0, waited_s: float = 0.0) -> Demand:
    """So many waiting requests, and arrivals at this rate in the last minute."""
    tasks = [WaitingTask(n, "m", NOW - waited_s) for n in range(waiting)]
    arrivals = [NOW - n / rate for n in range(round(60 * rate))] if rate else []
    return Demand(deque(tasks), deque(sorted(arrivals)))


# --- the formulas: answers take 10 s and a reload 40 s, so rates last for 200 s ---


def test_a_queue_that_drains_faster_saves_its_share() -> None:
    """Ten requests drain in 100 s or in 50: on average, 2.5 or 1.25 wait. The second
    resident helps for 160 s.
    """
    assert saved_by_load(demand(10), 1, 10, 40, NOW) == pytest.approx(1.25 * 160)


def test_a_queue_that_grows_slower_saves_the_difference() -> None:
    """Of 0.3 requests a second, one resident answers a third, two answer two thirds."""
    growing = saved_by_load(demand(0, rate=0.3), 1, 10, 40, NOW)
    assert growing == pytest.approx((20 - 10) * 160)


def test_without_a_resident_requests_wait_at_least_for_a_load() -> None:
    tasks = [WaitingTask(0, "m", NOW - 200), WaitingTask(1, "m", NOW - 10)]
    assert saved_by_first_load(Demand(deque(tasks)), 120, NOW) == 200 + 120


def test_lost_time_makes_each_script_wait_for_its_share() -> None:
    assert caused_to_scripts(120, scripts=10, workers=2) == 600
    assert caused_to_scripts(120, scripts=10, workers=0) == math.inf
    assert caused_to_scripts(120, scripts=0, workers=0) == 0


# --- single steps ---


def fleet(
    models: dict[str, float], *, scripts: int, reload_s: float = 120.0, **more: float
) -> Fleet:
    """One GPU for each of these models, which are idle there; besides, one with a
    script and `free` empty ones. `silent_s`: when each model was last requested.
    """
    gpus = {"script": FleetGpu("script", 24.0, worker=SCRIPT)}
    for number in range(int(more.get("free", 0))):
        gpus[f"free-{number}"] = FleetGpu(f"free-{number}", 24.0)
    latest = NOW - more.get("silent_s", 0.0)
    demands: dict[str, Demand] = {}
    for place in models:
        gpus[place] = FleetGpu(place, 24.0)
        model = place.partition(" ")[0]
        resident = FleetResident(model, gpus[place], Phase.READY, latest, latest)
        gpus[place].residents[model] = resident
        demands[model] = Demand(arrivals=deque([latest]))
    names = [*demands, SCRIPT]
    times = {(name, move): reload_s for name in names for move in Switch}
    times |= {(name, Switch.UNLOAD): 1.0 for name in names}
    memory_gb = {place.partition(" ")[0]: size for place, size in models.items()}
    made = Fleet(
        gpus,
        {**memory_gb, SCRIPT: 20.0},
        SwitchTimes(times),
        demand=demands,
    )
    made.scripts.extend(WaitingTask(n, SCRIPT, NOW) for n in range(scripts))
    return made


@pytest.mark.parametrize(("reload_s", "leaves"), [(6.0, True), (120.0, False)])
def test_the_hysteresis_grows_with_the_measured_reload(
    reload_s: float, leaves: bool
) -> None:
    """Both residents are idle for 20 s, so the second is not needed for 40."""
    made = fleet({"m 1": 20, "m 2": 20}, scripts=20, reload_s=reload_s, silent_s=20)
    assert (CostPolicy().act(made, NOW) is not None) == leaves


def test_few_scripts_do_not_move_a_model_for_a_moment() -> None:
    """One script waits behind another for less time than a reload takes."""
    made = fleet({"m 1": 20, "m 2": 20}, scripts=1, silent_s=5000)
    assert CostPolicy().act(made, NOW) is None
    made = fleet({"m 1": 20, "m 2": 20}, scripts=20, silent_s=5000)
    assert CostPolicy().act(made, NOW) == UnloadModel("m", "m 1")


@pytest.mark.parametrize(("loaded_s", "leaves"), [(119, False), (120, True)])
def test_a_model_that_was_loaded_ahead_stays_for_as_long_as_it_took(
    loaded_s: float, leaves: bool
) -> None:
    made = fleet({"m": 20}, scripts=100)
    made.demand["m"].arrivals.clear()
    made.gpus["m"].residents["m"].used_at = NOW - loaded_s
    assert (CostPolicy().act(made, NOW) is not None) == leaves


def test_the_model_that_saves_the_least_for_its_memory_leaves() -> None:
    made = fleet({"small": 10, "large": 20}, scripts=400, silent_s=5000)
    assert CostPolicy().act(made, NOW) == UnloadModel("large", "large")
    made = fleet({"small": 10, "large": 20}, scripts=400, silent_s=5000)
    made.demand["large"].arrivals.append(NOW)
    assert CostPolicy().act(made, NOW) == UnloadModel("small", "small")


@pytest.mark.parametrize(
    ("scripts", "action"),
    [(1, LoadModel("m", ("free-0",))), (20, RunScript("free-0"))],
)
def test_a_free_gpu_goes_where_it_saves_more_waiting(
    scripts: int, action: object
) -> None:
    made = fleet({"m": 20}, scripts=scripts, free=1)
    made.gpus["m"].residents["m"].phase = Phase.BUSY
    made.demand["m"].waiting.append(WaitingTask(0, "m", NOW))
    assert CostPolicy().act(made, NOW) == action


# --- waits that end ---


def test_while_no_script_runs_one_waits_for_four_reloads_of_an_idle_model() -> None:
    """Then the model unloads (5 s), and the worker starts (5 s)."""
    requests = [Arrival(60.0 * n, "m", 1) for n in range(20)]
    work = Workload(
        {"GPU-0": 24.0},
        {"m": Model(boot_s=120, wake_s=None, unload_s=5, memory_gb=20)},
        {"s": Script(boot_s=5, exit_s=1, memory_gb=8)},
        [*requests, Arrival(100, "s", 10)],
        initial={"GPU-0": "m"},
    )
    outcome = play(work, "cost")
    assert outcome.unfinished == 0
    assert outcome.script[0] == pytest.approx(4 * 120 + 5 + 5 + 10, abs=5)


def test_a_request_does_not_wait_for_thousands_of_scripts() -> None:
    """It waits for four minutes, for the script that runs then, and for the boot."""
    scripts = [Arrival(0.0, "s", 40) for _ in range(500)]
    work = Workload(
        {"GPU-0": 24.0},
        {"m": Model(boot_s=120, wake_s=None, unload_s=5, memory_gb=20)},
        {"s": Script(boot_s=5, exit_s=1, memory_gb=8)},
        [*scripts, Arrival(100, "m", 5)],
    )
    assert play(work, "cost").llm[0] <= 240 + (5 + 40 + 1) + 120 + 5


def test_scripts_that_need_another_gpu_keep_no_model_from_a_free_one() -> None:
    made = fleet({"m": 20}, scripts=1000, free=1)
    made.remove(made.gpus["m"].residents["m"])
    del made.gpus["m"]
    made.allowed_gpus = {SCRIPT: frozenset({"script"})}
    made.demand["m"].waiting.append(WaitingTask(0, "m", NOW))
    assert CostPolicy().act(made, NOW) == LoadModel("m", ("free-0",))
