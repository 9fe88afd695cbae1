"""A server that schedules jobs before it can answer requests, and then never can, or is
to stop first.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gpuyard.config.locks import is_locked
from tests.support.instance import TestInstance, make_instance
from tests.support.wait import wait_until

# By the time that it fails, the keeper and the agent run.
CANNOT_ANSWER = """
def load(app_state, sockets):
    while not is_locked(app_state.home.node / "keeper.lock"):
        time.sleep(0.01)
    raise ImportError("half of uvicorn is installed")
"""
LOADS_LONG = """
_load = server._load_http_server
def load(app_state, sockets):
    while not app_state.stopping.is_set():
        time.sleep(0.01)
    return _load(app_state, sockets)
"""
PROGRAM = """
import time
from gpuyard.config.locks import is_locked
from gpuyard.server import __main__ as server
{load}
server._load_http_server = load
server.main()
"""


@contextmanager
def starting(instance: TestInstance, load: str) -> Iterator["subprocess.Popen[bytes]"]:
    """The server of the instance, with this `load` for what answers requests."""
    instance.home.create()
    program = PROGRAM.format(load=load)
    command = [sys.executable, "-c", program, "--home", str(instance.home.root)]
    with (instance.home.logs / "server.log").open("ab") as log:
        process = subprocess.Popen(
            command, env=instance.environment, stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def has_keeper(instance: TestInstance) -> bool:
    """Whether a keeper looks after the node of this home."""
    return is_locked(instance.home.node / "keeper.lock")


def test_a_server_that_cannot_answer_leaves_no_agent_behind():
    with make_instance() as instance, starting(instance, CANNOT_ANSWER) as server:
        assert server.wait(60) != 0
        assert "half of uvicorn" in (instance.home.logs / "server.log").read_text()
        wait_until(lambda: not has_keeper(instance), what="the keeper to leave")


def test_it_leaves_the_keeper_that_will_start_it_again():
    with make_instance() as instance:
        instance.home.create()
        killed = json.dumps({"restart": None})
        instance.home.server.write_text(killed)
        with starting(instance, CANNOT_ANSWER) as server:
            assert server.wait(60) != 0
        assert instance.home.server.read_text() == killed
        wait_until(lambda: has_keeper(instance), what="the keeper to stay")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_is_stopped_before_it_answers_is_never_announced(number):
    with make_instance() as instance, starting(instance, LOADS_LONG) as server:
        wait_until(lambda: has_keeper(instance), what="jobs to be scheduled")
        server.send_signal(number)
        assert server.wait(60) == 0
        assert not instance.home.server.exists()
        said = (instance.home.logs / "server.log").read_text()
        assert '"serving"' not in said
        assert "Traceback" not in said
        wait_until(lambda: not has_keeper(instance), what="the keeper to leave")
