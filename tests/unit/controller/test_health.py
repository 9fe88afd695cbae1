"""How the ends of attempts count for the health of their provider."""

from types import SimpleNamespace
from typing import Any

import pytest

from gpuyard.controller.attempt_outcome import AttemptOutcome
from gpuyard.controller.health import ProviderHealth
from gpuyard.domain.shape import Shape
from gpuyard.domain.states import JobState
from gpuyard.scheduler.jobs import LiveJob


@pytest.mark.parametrize(
    ("outcome", "rate"),
    [
        ({"exit_code": 1}, 1.0),
        ({"reason": "command_not_found"}, 1.0),
        ({"reason": "submit_failed"}, 0.0),
        ({"reason": "spawn_failed"}, 0.0),
        ({"reason": "agent_failed"}, 0.0),
        ({"stopped": "gpu_failed", "signal": 9}, 0.0),
        ({"reason": "node_rebooted", "lost": True}, 0.0),
        ({"stopped": "revoked"}, None),
        ({"reason": "storage_unreachable"}, None),
    ],
)
def test_only_faults_of_the_place_lower_the_success_rate(outcome, rate):
    core: Any = SimpleNamespace(clock=lambda: 100.0)
    attempt: Any = SimpleNamespace(provider="acme")
    job = LiveJob("job_1", JobState.RUNNING, Shape(), 3, 0.0)
    healths = ProviderHealth(core)
    healths.ended(job, attempt, AttemptOutcome(100.0, **outcome))
    assert healths.rates("acme")["success_rate_hour"] == rate
