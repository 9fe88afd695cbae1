"""A real JupyterLab in a place of `gpuyard dev`: reached through the forwarded port with
its token alone, and ended by the idle limit.

`make soak` runs it.
"""

import os
import subprocess
from collections.abc import Iterator

import httpx
import pytest

from tests.support.environments import make_python
from tests.support.instance import TestInstance, gpuyard, make_instance
from tests.support.ports import free_port
from tests.support.wait import wait_until

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        "GPUYARD_REAL_TRACKERS" not in os.environ, reason="`make soak` runs it"
    ),
]


@pytest.fixture
def instance() -> Iterator[TestInstance]:
    with make_instance() as made:
        yield made


def test_jupyterlab_is_reached_with_its_token_and_ends_when_nobody_uses_it(
    instance: TestInstance,
) -> None:
    programs = make_python("jupyter", ("jupyterlab",)).parent
    path = f"{programs}:{os.environ['PATH']}"
    (instance.work / "model.py").touch()
    words = ["dev", "--jupyter", "--name", "lab", "--idle", "20s"]
    showing = subprocess.Popen(
        [*gpuyard(), *words, "--port", str(free_port())],
        cwd=instance.work,
        env={**instance.environment, "PATH": path},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert showing.stdout is not None
        assert showing.stderr is not None
        url = showing.stdout.readline().strip()
        assert "/lab?token=" in url, showing.stderr.read()
        lab, _, token = url.partition("/lab?token=")
        contents = f"{lab}/api/contents"
        wait_until(lambda: status_of(url) == 200, 120, "JupyterLab")
        listed = httpx.get(contents, params={"token": token}).json()
        assert "model.py" in [item["name"] for item in listed["content"]]
        assert status_of(contents) == status_of(f"{contents}?token=x") == 403
        job = instance.json("show", "lab")["id"]
        instance.wait(job, "completed", timeout=300)
        said = instance.ok("logs", job)
        assert "ends after 20 s without use" in said
        assert token not in said
    finally:
        instance.run("cancel", "lab")
        showing.communicate(timeout=60)


def status_of(url: str) -> int:
    """What is answered there; 0 while nobody listens."""
    try:
        return httpx.get(url).status_code
    except httpx.TransportError:
        return 0
