"""Whoever is stopped keeps its connections open: beats tell agent and server of each
other, and the keeper helps.
"""

import os
import signal
import subprocess
import sys
import time

import pytest

from gpuyard.domain import wire
from gpuyard.domain.errors import ProviderError
from gpuyard.node.agent_watchdog import AgentWatchdog
from tests.integration.node.test_agent_dials import by_hand, start
from tests.support.node import make_node, wait_for
from tests.support.wait import eventually

BEAT_S = 0.1


@pytest.fixture
def node():
    with make_node(real_agent=True) as made:
        made.close()
        made.config_more = {"heartbeat_s": BEAT_S}
        made.open()
        made.linked(2)
        yield made


def test_a_stopped_agent_has_left_and_one_that_wakes_joins_again(node):
    job = node.start("import time; print('up', flush=True); time.sleep(1000)")
    node.says(job, "up")
    agent = node.pid("agent")
    left = len(node.sink.left)
    os.kill(agent, signal.SIGSTOP)
    wait_for(lambda: len(node.sink.left) > left, "the silence to be noticed")
    with pytest.raises(ProviderError):
        node.start("pass")
    os.kill(agent, signal.SIGCONT)
    hello = node.linked(3)
    assert [(attempt.attempt_id, attempt.state) for attempt in hello.attempts] == [
        (job, "running")
    ]
    assert node.pid("agent") == agent


def test_what_was_said_to_a_stopped_agent_is_not_obeyed_when_it_wakes(node):
    """The server may have given the attempt to another node meanwhile; if not, it says
    so again on the new link.
    """

    async def scenario(server):
        await server.accept()
        server.send(wire.Welcome(1, heartbeat_s=BEAT_S))
        await server.receive(wire.Beat)
        server.send(wire.Beat())
        agent = node.pid("agent")
        os.kill(agent, signal.SIGSTOP)
        server.send(start("too_late"))
        long_enough = time.monotonic() + 2 * wire.SILENT_BEATS * BEAT_S
        await eventually(
            lambda: time.monotonic() > long_enough, "the link to be out of date"
        )
        os.kill(agent, signal.SIGCONT)
        await server.hung_up()
        assert (await server.welcome()).attempts == []

    by_hand(node, scenario)


def test_an_agent_leaves_a_server_that_is_silent(node):
    async def scenario(server):
        await server.accept()
        server.send(wire.Welcome(1, heartbeat_s=BEAT_S))
        await server.hung_up()
        await server.welcome()

    by_hand(node, scenario)


def test_an_agent_leaves_a_server_that_takes_its_call_and_says_nothing(node):
    async def scenario(server):
        await server.accept()
        await server.hung_up()
        await server.welcome()

    by_hand(node, scenario)


def test_the_keeper_replaces_an_agent_that_stays_stopped(node):
    job = node.start("import time; print('up', flush=True); time.sleep(1000)")
    node.says(job, "up")
    before = node.pid("agent")
    os.kill(before, signal.SIGSTOP)
    node.next_agent(before)
    hello = node.linked(3)
    assert [(attempt.attempt_id, attempt.state) for attempt in hello.attempts] == [
        (job, "running")
    ]
    assert "is stopped: killed" in (node.home.node / "keeper.log").read_text()


def test_the_keeper_tells_an_agent_that_hangs_from_one_that_works(tmp_path):
    sign = tmp_path / "pulse"
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE
    ) as process:
        watch = AgentWatchdog(sign)
        assert not any(watch.fault(process.pid) for _ in range(100)), (
            "one that never touched it is not held to it"
        )
        for at in range(1, 100):
            sign.touch()
            os.utime(sign, (at, at))
            assert watch.fault(process.pid) == ""
        faults = [watch.fault(process.pid) for _ in range(100)]
        assert faults[0] == ""
        assert "no longer" in faults[-1]
        process.communicate(b"\n")
