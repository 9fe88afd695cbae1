"""Two real models on simulated GPUs: `transformers serve` on this machine's processor,
asked by OpenAI's own client.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.test_models import models
from tests.support import huggingface
from tests.support.instance import TestInstance, make_instance
from tests.support.model_server import OFFLINE
from tests.support.programs import run_program

fast_trainer_python = huggingface.fast_trainer_python
SET_BOOT_S = 20
PROGRAMS = Path(__file__).parents[1] / "programs" / "tinymodel"


@pytest.fixture(scope="session")
def tiny_model(
    fast_trainer_python: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A folder with a model that says nonsense."""
    folder = tmp_path_factory.mktemp("tiny")
    # A text that stays as it is: with other words, the model may say nothing at all.
    text = PROGRAMS.parents[2] / "LICENSE"
    run_program(
        [fast_trainer_python, PROGRAMS / "make.py", folder, text],
        env=os.environ | OFFLINE,
    )
    return folder


def serving_program(python: Path, folder: Path) -> Path:
    """`transformers`, as a script that the fork server runs."""
    program = folder / "serve.py"
    program.write_text(
        f"#!{python}\nfrom transformers.cli.transformers import main\n\nmain()\n"
    )
    program.chmod(0o755)
    return program


def chat(python: Path, instance: TestInstance, model: str) -> dict[str, Any]:
    """What OpenAI's client gets."""
    address = instance.address()
    words = [python, PROGRAMS / "chat.py", address.url, address.token, model]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_models_share_gpus_with_scripts(
    fast_trainer_python: Path, tiny_model: Path, tmp_path: Path
) -> None:
    program = serving_program(fast_trainer_python, tmp_path)
    hub = {"HF_HOME": str(tiny_model / "hub"), **OFFLINE}
    sections = [
        f'[models.{name}]\nengine = "transformers"\nsource = "{tiny_model}"\nprogram ='
        f' "{program}"\nmemory_gb = 16\nboot_s = {SET_BOOT_S}\nargs = ["--device", "cpu"]\n'
        + "environment = { "
        + ", ".join(f'{key} = "{value}"' for key, value in hub.items())
        + " }\n"
        for name in ("small", "other")
    ]
    (tiny_model / "hub" / "hub").mkdir(parents=True)
    with make_instance() as instance:
        instance.home.create()
        instance.home.settings.write_text("\n".join(sections))
        instance.ok("up", "--simulate-gpus", "2x24")
        first = chat(fast_trainer_python, instance, "small")
        second = chat(fast_trainer_python, instance, "other")
        assert first["models"] == ["other", "small"] or first["models"] == [
            "small",
            "other",
        ]
        assert first["whole"]
        assert first["whole"] == second["whole"]  # the same weights, read greedily
        # A letter that is not whole at the end is shown as � when all is said, and
        # never comes in parts.
        assert "".join(first["parts"]).rstrip("�") == first["whole"].rstrip("�")
        assert {gpu["state"] for gpu in instance.json("gpus")["items"]} == {"llm_ready"}

        instance.ok("models", "pin", "small")
        script = instance.submit(["true"], resources={"gpus": 1})
        # The model that is not pinned makes room.
        assert instance.wait(script, timeout=100).state == "completed"
        assert chat(fast_trainer_python, instance, "small")["whole"] == first["whole"]
        # It is what the load took, not what the settings say.
        learned_s = models(instance)["small"]["boot_s"]
        assert 0 < learned_s < 100
        assert learned_s != SET_BOOT_S
