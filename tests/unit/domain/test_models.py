"""Models as they are configured: what belongs together, and how each engine's server is
started.
"""

import pytest
from pydantic import ValidationError

from gpuyard.domain.models import Engine, ModelSpec, launch

SLEEP = {"sleep": "/sleep", "wake": "/wake_up", "asleep": "/is_sleeping"}
OWN = {"command": ("serve", "{port}"), "memory_gb": "8GB"}


def test_vllm_sleeps_when_it_has_a_level():
    start = launch("m", ModelSpec(engine=Engine.VLLM, memory_gb=8, sleep_level=2), 8000)
    assert start.command[:2] == ("vllm", "serve")
    assert "--enable-sleep-mode" in start.command
    assert start.environment["VLLM_SERVER_DEV_MODE"] == "1"
    assert (start.sleep, start.wake, start.asleep) == (
        "/sleep?level=2",
        "/wake_up",
        "/is_sleeping",
    )
    awake = ModelSpec(engine=Engine.VLLM, memory_gb=8)
    assert not awake.sleeps
    assert "--enable-sleep-mode" not in launch("m", awake, 8000).command


def test_any_server_sleeps_that_has_the_paths():
    spec = ModelSpec.model_validate({**OWN, **SLEEP})
    assert spec.sleeps
    start = launch("m", spec, 8000)
    assert (start.command, start.wake) == (("serve", "8000"), "/wake_up")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({**OWN, "sleep": "/sleep"}, "belongs together with wake and asleep"),
        ({**OWN, **SLEEP, "sleep": "sleep"}, "should match pattern"),
        ({**OWN, "sleep_level": 1}, "is vLLM's"),
        ({"engine": "ollama", "memory_gb": 8, "sleep_level": 2}, r"Ollama's \(1\)"),
        (
            {"engine": "vllm", "memory_gb": 8, "sleep_level": 3},
            "less than or equal to 2",
        ),
        ({"engine": "vllm", "memory_gb": 8, **SLEEP}, "for the engine command"),
    ],
)
def test_what_does_not_belong_together_is_refused(fields, said):
    with pytest.raises(ValidationError, match=said):
        ModelSpec.model_validate(fields)
