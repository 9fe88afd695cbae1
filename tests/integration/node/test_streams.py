"""Streams to attempts on a node, with a real agent: commands beside the program, and
connections to ports.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from gpuyard.domain import stream_frames as frames
from gpuyard.domain.errors import ClosedPortError, RefusedError
from gpuyard.node.launcher.hierarchy import groups_of
from tests.support.job_stream import Stream
from tests.support.node import Node, gone, make_node, wait_for

SLEEP = "print('ready', flush=True); import time; time.sleep(600)"


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """One node for all of these: none harms another's attempt."""
    with make_node(real_agent=True) as made:
        yield made


@pytest.fixture
def attempt_id(node: Node) -> str:
    """An attempt that runs until it is ended."""
    started = node.start(SLEEP, environment={"OF_THE_JOB": "yes"})
    node.says(started, "ready")
    node.started(started)
    return started


def python(code: str, *words: str) -> frames.RunCommand:
    return frames.RunCommand([sys.executable, "-I", "-S", "-c", code, *words])


def output_of(said: list[frames.FromAgent], kind: type[Any] = frames.Output) -> bytes:
    return b"".join(frame.data for frame in said if isinstance(frame, kind))


def test_a_command_has_what_the_job_has_and_its_own_input_and_output(
    node: Node, attempt_id: str
) -> None:
    stream = Stream(node, attempt_id)
    code = """
import json, os, sys
given = sys.stdin.buffer.read()
group = open("/proc/self/cgroup").read()
print(json.dumps([os.getcwd(), os.environ["OF_THE_JOB"], group, len(given)]))
sys.stderr.write("to stderr")
sys.exit(7)
"""
    parts = [frames.Input(os.urandom(frames.PART)) for _ in range(4)]
    stream.send(python(code), *parts, frames.InputEnd())
    said = stream.rest()
    assert said[-1] == frames.Exited(7)
    folder, variable, group, count = json.loads(output_of(said))
    assert (folder, variable) == (str(node.work), "yes")
    assert group == Path(f"/proc/{node.started(attempt_id).pid}/cgroup").read_text()
    assert count == 4 * frames.PART
    taken = [frame.count for frame in said if isinstance(frame, frames.Taken)]
    assert sum(taken) == 4 * frames.PART
    assert output_of(said, frames.ErrorOutput) == b"to stderr"


def test_all_output_comes_before_the_end_although_a_child_holds_the_pipes(
    node: Node, attempt_id: str
) -> None:
    stream = Stream(node, attempt_id)
    stream.send(
        frames.RunCommand(["sh", "-c", "sleep 600 & head -c 1000000 /dev/zero"])
    )
    said = stream.rest()
    assert len(output_of(said)) == 1_000_000
    assert said[-1] == frames.Exited(0)


@pytest.mark.parametrize(
    ("command", "reason"),
    [(["no-such-program"], "command_not_found"), (["/etc"], "command_not_found")],
)
def test_a_command_that_cannot_be_started_says_why(
    node: Node, attempt_id: str, command: list[str], reason: str
) -> None:
    stream = Stream(node, attempt_id)
    stream.send(frames.RunCommand(command))
    (said,) = stream.rest()
    assert isinstance(said, frames.NotStarted)
    assert said.reason == reason
    assert command[0] in said.message


def test_a_command_ends_when_its_client_has_gone_even_if_it_reads_nothing(
    node: Node, attempt_id: str
) -> None:
    stream = Stream(node, attempt_id)
    code = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGHUP, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "600"])
print(os.getpid(), child.pid, flush=True)
time.sleep(600)
"""
    parts = [frames.Input(bytes(frames.PART))] * (frames.WINDOW // frames.PART)
    stream.send(python(code), *parts)
    pids = [int(word) for word in stream.until(b"\n").split()]
    stream.hang_up()
    for pid in pids:
        gone(pid)
    assert psutil.pid_exists(node.started(attempt_id).pid)


def test_a_client_that_sends_more_than_it_may_is_cut_off(
    node: Node, attempt_id: str
) -> None:
    stream = Stream(node, attempt_id)
    stream.send(
        python("import os, time; print(os.getpid(), flush=True); time.sleep(600)")
    )
    pid = int(stream.until(b"\n"))
    parts = [frames.Input(bytes(frames.PART))] * (2 * frames.WINDOW // frames.PART)
    stream.send(*parts)
    gone(pid)
    assert psutil.pid_exists(node.started(attempt_id).pid)


def test_a_command_ends_with_its_job_which_does_not_wait_for_its_client(
    node: Node, attempt_id: str
) -> None:
    stream = Stream(node, attempt_id)
    stream.send(frames.RunCommand(["sh", "-c", "trap '' TERM HUP; yes"]))
    stream.until(b"y\n")
    # Nobody reads its output any more.
    node.stop(attempt_id)
    assert node.ended(attempt_id).stopped == "cancelled"
    assert stream.rest()[-1] == frames.Exited(137, with_job=True)
    with pytest.raises(RefusedError, match="does not run there"):
        Stream(node, attempt_id)


def test_a_command_can_be_run_beside_what_an_earlier_agent_started(
    node: Node, attempt_id: str
) -> None:
    agent = node.pid("agent")
    hellos = len(node.sink.hellos)
    leader = node.started(attempt_id).pid
    os.kill(agent, 9)
    node.next_agent(agent)
    node.linked(hellos + 1)
    wait_for(
        lambda: len(node.sink.of(type(node.started(attempt_id)), attempt_id)) > 1,
        "it to be adopted",
    )
    stream = Stream(node, attempt_id)
    stream.send(
        python(
            "import os, time; print(os.getpid(), os.environ['OF_THE_JOB'], flush=True); time.sleep(600)"
        )
    )
    pid, variable = stream.until(b"\n").split()
    assert variable == b"yes"
    assert groups_of(int(pid)) == groups_of(leader)


def test_a_terminal_has_its_size_and_ctrl_c_is_a_signal(
    node: Node, attempt_id: str
) -> None:
    stream = Stream(node, attempt_id)
    script = "stty size; trap 'stty size' WINCH; trap 'echo caught' INT; echo ready; while :; do sleep 0.05; done"
    stream.send(frames.RunCommand(["sh", "-c", script], "xterm-test", 40, 132))
    assert b"40 132" in stream.until(b"ready")
    stream.send(frames.Resize(50, 90))
    stream.until(b"50 90")
    stream.send(frames.Input(b"\x03"))
    stream.until(b"caught")


SERVER = """
import socket, threading
served = socket.create_server(("127.0.0.1", 0))
print("port", served.getsockname()[1], "end", flush=True)
def serve(connection):
    with connection:
        while part := connection.recv(65536):
            connection.sendall(part[::-1])
        connection.sendall(b"all read")
while True:
    threading.Thread(target=serve, args=(served.accept()[0],)).start()
"""


@pytest.fixture
def served(node: Node) -> tuple[str, int]:
    """An attempt that listens, and its port."""
    attempt_id = node.start(SERVER)
    node.says(attempt_id, "end")
    node.started(attempt_id)
    return attempt_id, int(node.output(attempt_id).split()[1])


def test_a_port_is_reached_and_each_side_may_say_that_it_has_said_all(
    node: Node, served: tuple[str, int]
) -> None:
    attempt_id, port = served
    stream = Stream(node, attempt_id, port)
    stream.send(frames.Input(b"abc"))
    stream.until(b"cba")
    stream.send(frames.InputEnd())
    said = stream.rest()
    assert output_of(said) == b"all read"
    assert said[-1] == frames.OutputEnd()


def test_who_has_taken_the_port_of_a_model_server_is_not_reached(
    node: Node, served: tuple[str, int], attempt_id: str
) -> None:
    server_id, port = served
    stream = Stream(node, server_id, port, own_port=True)
    stream.send(frames.Input(b"abc"))
    stream.until(b"cba")
    # The other program says that it is of the attempt.
    claim = f"""
import os, sys
os.environ["GPUYARD_ATTEMPT_ID"] = {attempt_id!r}
os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", {SERVER!r}])
"""
    impostor = node.start(claim)
    node.says(impostor, "end")
    node.started(impostor)
    taken = int(node.output(impostor).split()[1])
    with pytest.raises(RefusedError, match=f"another program listens at port {taken}"):
        Stream(node, attempt_id, taken, own_port=True)


def test_a_connection_ends_with_the_job(node: Node, served: tuple[str, int]) -> None:
    attempt_id, port = served
    stream = Stream(node, attempt_id, port)
    stream.send(frames.Input(b"abc"))
    stream.until(b"cba")
    node.stop(attempt_id)
    node.ended(attempt_id)
    stream.rest()


def test_a_port_where_nothing_listens_is_named(node: Node, attempt_id: str) -> None:
    with pytest.raises(ClosedPortError, match=r"listen on 127\.0\.0\.1"):
        Stream(node, attempt_id, 1)
