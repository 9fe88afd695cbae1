"""Typing to the program of an interactive job, with a real agent."""

import os
from collections.abc import Iterator

import psutil
import pytest

from gpuyard.domain import stream_frames as frames
from gpuyard.domain.errors import RefusedError
from gpuyard.domain.stream_frames import InputOver, InputOverCause
from tests.support.job_stream import Stream
from tests.support.node import Node, gone, make_node, wait_for

ECHO = """
import sys
print("ready", flush=True)
for line in sys.stdin:
    print("got", line.strip(), flush=True)
print("end of input", flush=True)
"""
# Reads a byte of its input for each signal.
SLOW = """
import os, signal
signal.signal(signal.SIGUSR1, lambda *_: print("read", len(os.read(0, 1 << 20)), flush=True))
print("ready", flush=True)
while True:
    signal.pause()
"""


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """One node for all of these: none harms another's attempt."""
    with make_node(real_agent=True) as made:
        yield made


def interactive(node: Node, code: str) -> str:
    attempt_id = node.start(code, interactive=True)
    node.says(attempt_id, "ready")
    node.started(attempt_id)
    return attempt_id


def typed(*lines: str) -> list[frames.Input]:
    return [frames.Input(line.encode()) for line in lines]


def holder_of(node: Node, attempt_id: str) -> int:
    """The pid of the process that keeps the input open."""
    (noted,) = [
        line["input_holder"]
        for line in node.journal(attempt_id)
        if "input_holder" in line
    ]
    return noted[0]


def test_two_people_type_and_one_ends_the_input_for_both(node: Node) -> None:
    attempt_id = interactive(node, ECHO)
    first = Stream(node, attempt_id, stdin=True)
    second = Stream(node, attempt_id, stdin=True)
    first.send(*typed("one\n"))
    node.says(attempt_id, "got one\n")
    second.send(*typed("two\n", "three\n"), frames.InputEnd())
    node.says(attempt_id, "got three\nend of input\n")
    assert second.rest()[-1] == InputOver(InputOverCause.ENDED)
    assert first.rest() == [frames.Taken(4), InputOver(InputOverCause.ENDED)]
    assert node.ended(attempt_id).exit_code == 0


def test_input_stays_open_when_the_agent_is_killed(node: Node) -> None:
    attempt_id = interactive(node, ECHO)
    stream = Stream(node, attempt_id, stdin=True)
    stream.send(*typed("one\n"))
    assert stream.next() == frames.Taken(4)
    holder = holder_of(node, attempt_id)
    agent = node.pid("agent")
    hellos = len(node.sink.hellos)
    os.kill(agent, 9)
    node.next_agent(agent)
    node.linked(hellos + 1)
    assert stream.rest() == []
    wait_for(
        lambda: len(node.sink.of(type(node.started(attempt_id)), attempt_id)) > 1,
        "it to be adopted",
    )
    again = Stream(node, attempt_id, stdin=True)
    again.send(*typed("two\n"))
    node.says(attempt_id, "got one\ngot two\n")
    assert psutil.pid_exists(holder)
    again.send(frames.InputEnd())
    node.says(attempt_id, "end of input")
    assert node.ended(attempt_id).exit_code == 0
    gone(holder)


def test_who_types_waits_for_a_program_that_does_not_read(node: Node) -> None:
    attempt_id = interactive(node, SLOW)
    stream = Stream(node, attempt_id, stdin=True)
    stream.send(*[frames.Input(bytes(frames.PART))] * (frames.WINDOW // frames.PART))
    # A pipe holds 64 KB.
    for _ in range(2):
        assert stream.next() == frames.Taken(frames.PART)
    # The agent is not held up: another stream, and another attempt, go on.
    Stream(node, attempt_id, stdin=True).hang_up()
    other = interactive(node, ECHO)
    node.stop(other)
    node.ended(other)
    os.kill(node.started(attempt_id).pid, 10)
    node.says(attempt_id, "read 65536")
    for _ in range(2):
        assert stream.next() == frames.Taken(frames.PART)
    holder = holder_of(node, attempt_id)
    node.stop(attempt_id)
    assert stream.rest()[-1] == InputOver(InputOverCause.ATTEMPT_OVER)
    gone(holder)


def test_a_program_may_close_its_input(node: Node) -> None:
    attempt_id = interactive(
        node,
        """
        import os, time
        os.close(0)
        print("ready", flush=True)
        time.sleep(600)
        """,
    )
    gone(holder_of(node, attempt_id))
    stream = Stream(node, attempt_id, stdin=True)
    stream.send(*typed("one\n"))
    assert stream.rest() == [InputOver(InputOverCause.CLOSED)]
    node.stop(attempt_id)


def test_a_job_that_is_not_interactive_takes_no_input(node: Node) -> None:
    attempt_id = node.start("print('ready', flush=True); import time; time.sleep(600)")
    node.says(attempt_id, "ready")
    node.started(attempt_id)
    with pytest.raises(RefusedError, match="without an open input"):
        Stream(node, attempt_id, stdin=True)
    node.stop(attempt_id)
