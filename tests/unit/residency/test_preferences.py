"""Roles of GPUs, and whether idle models make room first: single steps of the
policies.
"""

import pytest

from gpuyard.residency.cost_policy import CostPolicy
from gpuyard.residency.fleet import (
    Demand,
    Fleet,
    FleetGpu,
    FleetResident,
    Phase,
    WaitingTask,
)
from gpuyard.residency.policies import (
    DrainResident,
    LoadModel,
    LruPolicy,
    RunScript,
    ThresholdPolicy,
    UnloadModel,
    place_model,
)
from gpuyard.residency.static_policy import StaticPolicy
from gpuyard.residency.switching import Switch, SwitchTimes

MODELS = {"brain": 20.0, "worker": 20.0}
BOOT_S = {"brain": 160.0, "worker": 40.0}
SCRIPT = "script"
POLICIES = [CostPolicy, ThresholdPolicy, LruPolicy]
NOW = 10_000.0
# The primary and the secondary GPU of the brain, and one for all.
RANKS = {"primary": 2, "secondary": 1, "any": 0}


def fleet(**more) -> Fleet:
    times = {
        (name, move): BOOT_S.get(name, 5.0)
        for name in (*MODELS, SCRIPT)
        for move in Switch
    }
    # In an order that no rule would choose.
    gpus = {
        name: FleetGpu(name, 24.0, brain_rank=RANKS[name])
        for name in ("secondary", "any", "primary")
    }
    return Fleet(
        gpus,
        {**MODELS, SCRIPT: 0.0},
        SwitchTimes(times),
        brain_models=frozenset({"brain"}),
        demand={model: Demand() for model in MODELS},
        exclusive_scripts=True,
        **more,
    )


def put(fleet: Fleet, model: str, gpu: str, phase: Phase = Phase.READY) -> None:
    resident = FleetResident(model, fleet.gpus[gpu], phase, 0.0)
    fleet.gpus[gpu].residents[model] = resident


def request(fleet: Fleet, model: str) -> None:
    fleet.demand[model].add(WaitingTask(0, model, 0.0), NOW)


def scripts(fleet: Fleet, count: int) -> None:
    fleet.scripts.extend(WaitingTask(0, SCRIPT, 0.0) for _ in range(count))


def places(fleet: Fleet, model: str) -> list[str]:
    """Where the model goes, and where its next copies go."""
    found: list[str] = []
    while gpus := place_model(fleet, model):
        put(fleet, model, gpus[0].id)
        found.append(gpus[0].id)
    return found


# --- roles ---


def test_the_brains_model_goes_to_the_brains_gpus_first():
    assert places(fleet(), "brain") == ["primary", "secondary", "any"]


def test_other_models_go_elsewhere_first():
    assert places(fleet(), "worker") == ["any", "secondary", "primary"]


def test_the_brains_model_on_two_gpus_gets_both_of_the_brains():
    gang = fleet(gang_sizes={"brain": 2})
    gpus = place_model(gang, "brain")
    assert [gpu.id for gpu in gpus] == ["primary", "secondary"]


def test_a_model_wakes_where_it_sleeps_whatever_the_role():
    found = fleet(can_sleep=frozenset({"worker"}))
    put(found, "worker", "primary", Phase.ASLEEP)
    assert [gpu.id for gpu in place_model(found, "worker")] == ["primary"]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_request_loads_its_model_where_its_role_says(policy):
    found = fleet()
    request(found, "brain")
    assert policy().act(found, NOW) == LoadModel("brain", ("primary",))


def test_the_fixed_half_for_models_begins_with_the_brains():
    found = fleet()
    request(found, "worker")
    request(found, "brain")
    assert StaticPolicy().act(found, NOW) == LoadModel("brain", ("primary",))


@pytest.mark.parametrize("policy", [*POLICIES, StaticPolicy])
def test_scripts_run_on_gpus_of_the_brain_last(policy):
    found = fleet()
    scripts(found, 1)
    assert policy().act(found, NOW) == RunScript("any")


@pytest.mark.parametrize("policy", POLICIES)
def test_a_script_displaces_a_model_on_the_brains_gpus_last(policy):
    """They may be displaced, and the one there would load again faster."""
    found = fleet()
    put(found, "worker", "primary")
    put(found, "worker", "secondary")
    put(found, "brain", "any")
    scripts(found, 100)
    assert policy().act(found, NOW) == UnloadModel("brain", "any")


# --- idle models first ---


def busy_and_idle(*, prefer_idle: bool) -> Fleet:
    """The busy model would load again faster."""
    found = fleet(prefer_idle=prefer_idle)
    del found.gpus["primary"], found.gpus["secondary"]
    found.gpus["other"] = FleetGpu("other", 24.0)
    put(found, "worker", "any", Phase.BUSY)
    put(found, "brain", "other")
    scripts(found, 100)
    return found


@pytest.mark.parametrize("policy", POLICIES)
def test_an_idle_model_makes_room_first(policy):
    found = busy_and_idle(prefer_idle=True)
    assert policy().act(found, NOW) == UnloadModel("brain", "other")


@pytest.mark.parametrize("policy", POLICIES)
def test_unless_the_settings_say_otherwise(policy):
    """Then a busy one that loads again faster answers its requests and leaves."""
    found = busy_and_idle(prefer_idle=False)
    assert policy().act(found, NOW) == DrainResident("worker", "any")


@pytest.mark.parametrize("prefer_idle", [True, False])
def test_a_busy_model_makes_no_room_for_another_model(prefer_idle):
    found = busy_and_idle(prefer_idle=prefer_idle)
    found.scripts.clear()
    found.demand["third"] = Demand()
    found.memory_gb = {**found.memory_gb, "third": 20.0}
    request(found, "third")
    found.switching.note("third", Switch.BOOT, 30.0)
    assert LruPolicy().act(found, NOW) == UnloadModel("brain", "other")


def test_a_model_goes_to_the_servers_own_machine_first():
    found = fleet()
    for name in ("primary", "any"):
        found.gpus[name].away = True
    assert [gpu.id for gpu in place_model(found, "brain")] == ["secondary"]
    put(found, "worker", "secondary")
    assert [gpu.id for gpu in place_model(found, "brain")] == ["primary"]
