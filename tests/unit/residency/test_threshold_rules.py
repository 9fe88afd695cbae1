"""The policy `threshold`: each rule of the seed document, just below its limit and just
above.
"""

import math

import pytest

from gpuyard.residency.fleet import (
    Demand,
    Fleet,
    FleetGpu,
    FleetResident,
    Phase,
    WaitingTask,
)
from gpuyard.residency.policies import (
    Action,
    LoadModel,
    RunScript,
    ThresholdPolicy,
    UnloadModel,
)
from gpuyard.residency.switching import Switch, SwitchTimes

NOW = 10_000.0
SCRIPT = "script"
BOOT_S = {"quick": 40.0, "slow": 160.0, "brain": 20.0, SCRIPT: 5.0}
MANY = 100


def fleet(*models: str, phase: Phase = Phase.READY, scripts: int = 0) -> Fleet:
    """One GPU for each of these models, with the model on it, and so many scripts that
    have just arrived.
    """
    gpus: dict[str, FleetGpu] = {}
    for number, model in enumerate(models):
        gpu = FleetGpu(f"GPU-{number}", 24.0)
        gpu.residents[model] = FleetResident(model, gpu, phase, 0.0)
        gpus[gpu.id] = gpu
    times = {(name, move): boot for name, boot in BOOT_S.items() for move in Switch}
    made = Fleet(
        gpus,
        dict.fromkeys(BOOT_S, 20.0),
        SwitchTimes(times),
        demand={model: Demand() for model in BOOT_S if model != SCRIPT},
    )
    made.scripts.extend(WaitingTask(n, SCRIPT, NOW) for n in range(scripts))
    return made


def action(made: Fleet, *, now: float = NOW, min_scripts: int = MANY) -> Action | None:
    return ThresholdPolicy(min_scripts).act(made, now)


@pytest.mark.parametrize("limit", [2, 5])
def test_a_more_scripts_than_the_setting_evict(limit):
    at_limit = fleet(*["quick"] * 4, scripts=limit)
    assert action(at_limit, min_scripts=limit) is None
    above = fleet(*["quick"] * 4, scripts=limit + 1)
    assert isinstance(action(above, min_scripts=limit), UnloadModel)


def test_b_more_than_twenty_scripts_evict_if_no_request_waits():
    """With eight idle models, twenty scripts are too few for the third rule."""
    assert action(fleet(*["quick"] * 8, scripts=20)) is None
    above = fleet(*["quick"] * 8, scripts=21)
    assert isinstance(action(above), UnloadModel)
    above.demand["quick"].add(WaitingTask(0, "quick", NOW), 3600.0)
    assert action(above) is None


@pytest.mark.parametrize(("idle", "limit"), [(1, 2), (3, 8)])
def test_c_scripts_that_would_wait_more_than_two_minutes_evict(idle, limit):
    """At 45 seconds each, 8 scripts and 3 idle models are exactly two minutes."""
    assert action(fleet(*["quick"] * idle, scripts=limit)) is None
    above = fleet(*["quick"] * idle, scripts=limit + 1)
    assert isinstance(action(above), UnloadModel)


def test_models_that_are_leaving_count_for_the_scripts():
    """Of six scripts, one gets the GPU that is being freed."""
    made = fleet(*["quick"] * 5, scripts=6)
    made.gpus["GPU-0"].residents["quick"].phase = Phase.UNLOADING
    assert action(made, min_scripts=5) is None


@pytest.mark.parametrize("phase", [Phase.BUSY, Phase.BOOTING])
def test_without_an_idle_model_the_scripts_wait(phase):
    made = fleet("quick", "slow", phase=phase, scripts=MANY)
    policy = ThresholdPolicy()
    assert policy.act(made, NOW) is None
    assert policy.wake_at == math.inf


def test_a_brain_is_never_evicted():
    made = fleet("brain", scripts=MANY)
    made.pinned_gpus = frozenset(made.gpus)
    assert action(made, now=NOW + 1_000_000, min_scripts=5) is None


def test_ageing_evicts_the_cheapest_idle_model_but_no_brain():
    """One script is below every limit. After ten boots of the victim it gets a GPU."""
    made = fleet("slow", "brain", "quick", scripts=1)
    made.pinned_gpus = frozenset({"GPU-1"})
    policy = ThresholdPolicy()
    due = NOW + 10 * BOOT_S["quick"]
    assert policy.act(made, NOW) is None
    assert policy.wake_at == due
    assert policy.act(made, due - 1) is None
    assert policy.act(made, due) == UnloadModel("quick", "GPU-2")


def test_a_free_gpu_goes_to_a_request_before_a_script():
    made = fleet("slow", scripts=1)
    made.gpus["free"] = FleetGpu("free", 24.0)
    assert action(made) == RunScript("free")
    made.demand["quick"].add(WaitingTask(0, "quick", NOW), 3600.0)
    assert action(made) == LoadModel("quick", ("free",))
