"""The three rules of the seed document by which `threshold` unloads a model."""

from collections import deque

import pytest

from gpuyard.residency.fleet import (
    Demand,
    Fleet,
    FleetGpu,
    FleetResident,
    Phase,
    WaitingTask,
)
from gpuyard.residency.policies import Action, ThresholdPolicy, UnloadModel
from gpuyard.residency.switching import Switch, SwitchTimes


def step(
    scripts: int, idle: int, requests: int = 0, min_scripts: int = 5
) -> Action | None:
    """What `threshold` does with so many scripts that have just come, and so many idle
    GPUs with the model `m`; requests wait for another model.
    """
    gpus = {f"g{n}": FleetGpu(f"g{n}", 24.0) for n in range(idle)}
    for gpu in gpus.values():
        gpu.residents["m"] = FleetResident("m", gpu, Phase.READY, 0.0)
    times = {("m", move): 60.0 for move in Switch} | {
        ("other", move): 60.0 for move in Switch
    }
    waiting = deque(WaitingTask(0, "other", 0.0) for _ in range(requests))
    fleet = Fleet(
        gpus,
        {"m": 20.0, "other": 20.0, "script": 0.0},
        SwitchTimes(times),
        exclusive_scripts=True,
        demand={"m": Demand(), "other": Demand(waiting)},
        scripts=deque(WaitingTask(0, "script", 0.0) for _ in range(scripts)),
    )
    return ThresholdPolicy(min_scripts).act(fleet, 0.0)


@pytest.mark.parametrize(
    ("scripts", "idle", "unloads"),
    [
        # A: more than five scripts wait.
        (5, 3, False),
        (6, 3, True),
        # C: at 45 s a script, they would wait for more than two minutes.
        (2, 1, False),
        (3, 1, True),
        # There is nothing to unload.
        (6, 0, False),
    ],
)
def test_many_scripts_or_a_long_wait_unload_a_model(scripts, idle, unloads):
    assert isinstance(step(scripts, idle), UnloadModel) is unloads


@pytest.mark.parametrize(("requests", "unloads"), [(0, True), (1, False)])
def test_very_many_scripts_unload_a_model_if_no_request_waits(requests, unloads):
    """B, where neither of the other rules holds."""
    found = step(21, idle=8, requests=requests, min_scripts=30)
    assert isinstance(found, UnloadModel) is unloads
