"""Lines of a job's output that are looked for: on the command line and over HTTP."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import httpx
import pytest

from tests.support.instance import TestInstance, gpuyard
from tests.support.web import http

PROGRAM = """
import logging, pathlib, sys, time
logging.basicConfig(level=20, stream=sys.stdout)
logging.info("loads data")
for epoch in range(2):
    print(f"Epoch {epoch + 1}/2 loss={1 / (epoch + 1)}", flush=True)
    logging.warning("epoch took long")
print("waits", flush=True)
while not pathlib.Path("go-on").exists():
    time.sleep(0.05)
raise ValueError("bad end")
"""


@pytest.fixture
def job_id(shared_instance: TestInstance) -> Iterator[str]:
    """A job that waits in the middle until there is a file `go-on`."""
    go_on = shared_instance.work / "go-on"
    go_on.unlink(missing_ok=True)
    made = shared_instance.submit([sys.executable, "-I", "-S", "-u", "-c", PROGRAM])
    shared_instance.wait(made, "running")
    yield made
    go_on.touch()
    shared_instance.run("cancel", made)


def test_lines_of_a_job_that_runs_and_then_fails(
    shared_instance: TestInstance, job_id: str
) -> None:
    lines = shared_instance.ok
    follower = subprocess.Popen(
        [*gpuyard(), "logs", "-f", "--level", "error", job_id],
        env=shared_instance.environment,
        stdout=subprocess.PIPE,
    )
    while "waits" not in lines("logs", "--search", "waits", job_id):
        time.sleep(0.05)
    assert lines("logs", "-E", "^epoch .*loss", "-i", "--tail", "1", job_id) == (
        "Epoch 2/2 loss=0.5\n"
    )
    assert lines("logs", "--section", "epoch:1", job_id).splitlines() == [
        "Epoch 1/2 loss=1.0",
        "WARNING:root:epoch took long",
    ]
    assert (
        lines("logs", "--since", "2000-01-01", "--level", "info", job_id).count("\n")
        == 3
    )
    assert lines("logs", "--until", "2000-01-01", job_id) == ""
    (shared_instance.work / "go-on").touch()
    output, _ = follower.communicate(timeout=60)
    assert follower.returncode == 1
    assert output.startswith(b"Traceback (most recent call last)")
    assert output.endswith(b"ValueError: bad end\n")
    last = json.loads(lines("logs", "--json", "--tail", "1", job_id))
    assert (last["text"], last["level"]) == ("ValueError: bad end", "error")
    assert last["section"] == "epoch:2/traceback"
    assert abs(last["time"] - time.time()) < 600


def test_pages_and_wrong_questions_over_http(
    shared_instance: TestInstance, job_id: str
) -> None:
    with http(shared_instance) as web:
        ask = partial(web.get, f"/api/v1/jobs/{job_id}/lines")
        _see_pages(ask)
        for asked, field in (
            ({"regex": "("}, "regex"),
            ({"level": "loud"}, "level"),
            ({"cursor": "x"}, "cursor"),
            ({"colour": "red"}, "colour"),
        ):
            refused = ask(params=asked)
            assert (refused.status_code, field in refused.text) == (422, True)


def _see_pages(ask: Callable[..., httpx.Response]) -> None:
    while not ask(params={"search": "waits"}).json()["items"]:
        time.sleep(0.05)
    found: list[str] = []
    cursor = None
    while True:
        asked = {"limit": 2} | ({"cursor": cursor} if cursor else {})
        page = ask(params=asked).json()
        found += [line["text"] for line in page["items"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert (len(found), found[-1]) == (6, "waits")
