"""Real model servers and scripts that take turns on a real GPU."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.acceptance.test_models import ask, models, said
from tests.gpu.conftest import PROGRAMS
from tests.support.instance import TestInstance, make_instance
from tests.support.model_server import OFFLINE
from tests.support.wait import wait_until

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

NAMES = ("one", "other")
PROMPTS = 40


@pytest.fixture
def serving(gpu_python: str, model_folder: Path) -> Iterator[TestInstance]:
    """An instance with two models of 8 GB, both served by transformers."""
    with make_instance(**OFFLINE, GPUYARD_NODE__DISCOVERY_S="0.5") as instance:
        instance.home.create()
        instance.home.settings.write_text(
            "\n".join(section(name, gpu_python, model_folder) for name in NAMES)
        )
        instance.ok("up")
        wait_until(lambda: instance.json("gpus")["items"], what="the GPUs")
        yield instance


def section(name: str, python: str, folder: Path) -> str:
    """The settings of a model."""
    environment = {**OFFLINE, "HF_HOME": str(folder / "hub")}
    if "PYTHONPATH" in os.environ:
        environment["PYTHONPATH"] = os.environ["PYTHONPATH"]
    pairs = ", ".join(
        f"{key} = {json.dumps(text)}" for key, text in environment.items()
    )
    fields = {
        "engine": "transformers",
        "source": str(folder),
        "program": str(Path(python).parent / "transformers"),
        "memory_gb": 8,
        "boot_s": 30,
        "boot_timeout_s": 120,
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in fields.items()]
    return "\n".join([f"[models.{name}]", *lines, f"environment = {{ {pairs} }}", ""])


def test_two_models_share_a_gpu_and_make_room_for_a_script(
    serving: TestInstance,
    gpu_python: str,
    record_property: Callable[[str, object], None],
) -> None:
    for name in NAMES:
        assert said(ask(serving, name, max_tokens=8))
    states = {name: models(serving)[name]["state"] for name in NAMES}
    assert states == dict.fromkeys(NAMES, "ready")
    (gpu,) = serving.json("gpus")["items"]
    record_property("two models hold, MB", gpu["memory_mb"] - gpu["free_mb"])
    asked = [
        {"prompt": f"Tell me about {number}.", "model": NAMES[number % 2]}
        for number in range(PROMPTS)
    ]
    with serving.client() as client:
        prompts = [job.id for job in client.submit(asked)]
    words = [gpu_python, str(PROGRAMS / "hold.py"), "0.9", "1"]
    script = serving.submit(words, resources={"gpus": 1})
    assert serving.wait(script, timeout=120).state == "completed"
    free = serving.ok("logs", script).split()[1]
    assert float(free) > 0.95, "the models had left before the script began"
    ended = [serving.wait(job, timeout=180) for job in prompts]
    assert {job.state for job in ended} == {"completed"}
    for name in NAMES:
        shown = models(serving)[name]
        times = {key: shown[key] for key in shown if key.endswith("_s")}
        record_property(f"times of {name}", times)
