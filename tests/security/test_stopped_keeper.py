"""A keeper that somebody stopped: nothing may depend on its being continued."""

import os
import signal
from collections.abc import Iterator

import pytest

from tests.support.node import Node, gone, make_node

WAITING = """
import pathlib, sys, time
print("up", flush=True)
while not pathlib.Path("go").exists():
    time.sleep(0.01)
sys.exit(7)
"""


@pytest.fixture
def node() -> Iterator[Node]:
    with make_node(real_agent=True) as made:
        yield made


def test_it_is_replaced_and_agent_and_jobs_run_on(node: Node) -> None:
    job = node.start(WAITING)
    node.says(job, "up")
    keeper_before = node.pid("keeper")
    agent = node.pid("agent")
    os.kill(keeper_before, signal.SIGSTOP)
    gone(keeper_before)
    assert node.pid("keeper") != keeper_before
    assert node.pid("agent") == agent
    (node.work / "go").touch()
    assert node.ended(job).exit_code == 7


def test_before_it_is_replaced_it_records_the_exits_that_it_missed(node: Node) -> None:
    job = node.start(WAITING)
    node.says(job, "up")
    os.kill(node.pid("agent"), signal.SIGKILL)
    node.linked(2)
    keeper_before = node.pid("keeper")
    os.kill(keeper_before, signal.SIGSTOP)
    (node.work / "go").touch()
    assert node.ended(job).exit_code == 7
    gone(keeper_before)
