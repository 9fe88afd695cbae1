"""Other people's clients of OpenAI's API, unchanged but for the two variables that name
address and key.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.environments import make_python
from tests.support.instance import TestInstance, make_instance
from tests.support.wait import wait_until

PROGRAMS = Path(__file__).parents[1] / "programs" / "openai"
PACKAGES = ("openai==3.57.0", "litellm==1.110.2", "langchain-openai==1.7.4")
# They are large and slow to import.
ALL = "GPUYARD_ALL_OPENAI_CLIENTS"
HEAVY = pytest.mark.skipif(ALL not in os.environ, reason=f"only with {ALL}=1")


@pytest.fixture(scope="module")
def served() -> Iterator[TestInstance]:
    """An instance with the model `a`, which is loaded."""
    with make_instance() as instance:
        instance.home.create()
        words = json.dumps([sys.executable, str(PROGRAMS / "server.py"), "{port}"])
        instance.home.settings.write_text(
            f"[models.a]\ncommand = {words}\nmemory_gb = 16\nboot_s = 1\n"
            f"pinned = true\n[models.large]\ncommand = {words}\nmemory_gb = 80\n"
        )
        instance.ok("up", "--simulate-gpus", "1x24")
        wait_until(
            lambda: instance.json("models")["items"][0]["state"] == "ready",
            what="the model",
        )
        yield instance


def asked(instance: TestInstance, python: str | Path, client: str) -> dict[str, Any]:
    """What the client got."""
    address = instance.address()
    done = subprocess.run(
        [python, PROGRAMS / f"ask_{client}.py"],
        env={
            **os.environ,
            "OPENAI_BASE_URL": f"{address.url}/v1",
            "OPENAI_API_KEY": address.token,
            # These would ask the network for prices, and tell it of the run.
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LANGSMITH_TRACING": "false",
        },
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def check(found: dict[str, Any]) -> None:
    """What every client must get."""
    assert (found["chat"], found["tokens"]) == ("again: hello there", 5)
    stream = [part for part in found["stream"] if part]
    assert stream == ["hello ", "there "]
    assert found["completion"] == "again: hello"
    assert found["embedding"] == [0.5, 0.25]
    name, arguments = found["tool"]
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    assert (name, arguments) == ("weather", {"town": 1})
    errors = {
        "no_model": ("NotFoundError", 404, "there is no model 'none'; there is: a"),
        # The model's own words.
        "refused": ("BadRequestError", 400, "maximum context length is 8 tokens"),
        "stranger": ("AuthenticationError", 401, "no valid token"),
    }
    for what, (kind, status, words) in errors.items():
        kinds, found_status, said = found[what]
        assert (kind in kinds, found_status) == (True, status), (what, found[what])
        assert words in said


def test_openais_own_client_works_unchanged(served: TestInstance) -> None:
    found = asked(served, sys.executable, "openai")
    check(found)
    assert (found["models"], found["model"]) == (["a", "large"], "a")
    kinds, status, said = found["no_room"]
    assert ("InternalServerError" in kinds, status) == (True, 503)
    assert "large needs a GPU with 80 GB; the largest here has 24 GB" in said


@HEAVY
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("client", ["openai", "litellm", "langchain"])
def test_newer_and_larger_clients_work_unchanged(
    served: TestInstance, client: str
) -> None:
    check(asked(served, make_python("openai-clients", PACKAGES), client))
