"""Machines that have joined a test's instance: homes of their own, with a real keeper
and agent each.
"""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import gpuyard
from gpuyard.client import joining
from gpuyard.config.joined import JoinedServer, open_agent_streams, read_membership
from gpuyard.config.paths import Home
from gpuyard.domain import wire, wire_frames
from gpuyard.domain.joining import SERVER_NAME
from tests.support.forkserver import fast_python
from tests.support.groups import remove_groups
from tests.support.instance import TestInstance
from tests.support.wait import wait_until


def invite(instance: TestInstance, *words: str) -> tuple[str, str]:
    """URL and code of a new invitation."""
    *_, url, code = instance.ok("nodes", "invite", *words).split()
    return url, code


class JoinedMachine:
    """A machine of its own home; `prefix` are the words that put its programs into a
    network namespace, `environment` is that of its agent besides the instance's.
    """

    def __init__(
        self, instance: TestInstance, prefix: Sequence[str] = (), **environment: str
    ) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="gy-", dir="/tmp"))
        self.home = Home(self._root / "home")
        self.prefix = prefix
        self._environment = {
            **instance.environment,
            "GPUYARD_NODE__CHECKPOINT_SCAN_S": "0.05",
            "GPUYARD_HOME": str(self.home.root),
            **environment,
        }
        self._keeper: subprocess.Popen[bytes] | None = None

    def join(self, url: str, code: str) -> str:
        """Join; its node's id."""
        return joining.join(self.home, url, code).node_id

    def start(self) -> None:
        """Start its keeper, and so its agent."""
        keeper = Path(gpuyard.__file__).parent / "node" / "keeper.py"
        agent = [fast_python(), "-m", "gpuyard.node.agent", "--home", self.home.root]
        words = [sys.executable, "-I", keeper, "--dir", self.home.node, "--", *agent]
        self._keeper = subprocess.Popen([*self.prefix, *words], env=self._environment)

    def copy(self) -> "JoinedMachine":
        """A machine that has got a copy of this one's home."""
        twin = object.__new__(JoinedMachine)
        twin._root = Path(tempfile.mkdtemp(prefix="gy-", dir="/tmp"))
        twin.home = Home(twin._root / "home")
        twin.home.create()
        shutil.copytree(self.home.membership, twin.home.membership)
        shutil.copy(self.home.node / "id", twin.home.node / "id")
        twin.prefix = self.prefix
        twin._environment = self._environment
        twin._keeper = None
        return twin

    def programs(self) -> list[int]:
        """The processes of jobs on it."""
        folder = os.fsencode(self.home.node / "attempts")
        found: list[int] = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if os.fsencode((process / "cwd").readlink()).startswith(folder):
                    found.append(int(process.name))
        return found

    def refusal(self) -> str:
        """Why the server does not serve its agent; empty if it does."""
        with suppress(OSError):
            return (self.home.node / "refused").read_text()
        return ""

    def end(self) -> None:
        """End its agent and its jobs, and remove its home."""
        if self._keeper:
            self._keeper.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._keeper.wait(10)
            self._keeper.kill()
            self._keeper.wait(10)
        root = str(self._root).encode()
        for file in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError, ProcessLookupError):
                if root in file.read_bytes():
                    os.kill(int(file.parent.name), signal.SIGKILL)
        remove_groups(self.home)
        shutil.rmtree(self._root, ignore_errors=True)

    # --- what its agent could say ---

    def ask(self, *messages: wire.FromAgent, node_id: str = "") -> list[wire.ToAgent]:
        """What the server answers to these messages on a new connection, until it ends
        that or says Welcome.
        """
        return asyncio.run(self._ask(messages))

    async def _ask(self, messages: Sequence[wire.FromAgent]) -> list[wire.ToAgent]:
        membership = read_membership(self.home)
        assert membership
        server = JoinedServer(membership, self.home.membership, SERVER_NAME)
        answers: list[wire.ToAgent] = []
        received = bytearray()
        reader, writer = await open_agent_streams(server)
        for message in messages:
            writer.write(wire_frames.encode(message))
        try:
            while part := await reader.read(1 << 16):
                received += part
                answers += map(
                    wire_frames.decode_to_agent, wire_frames.take_frames(received)
                )
                if any(isinstance(each, wire.Welcome) for each in answers):
                    break
        finally:
            writer.close()
        return answers


@contextmanager
def joined_machine(
    instance: TestInstance, name: str, **environment: str
) -> Iterator[JoinedMachine]:
    """A machine that has joined as `name`, and whose agent is connected."""
    machine = JoinedMachine(instance, **environment)
    try:
        machine.join(*invite(instance, "--name", name))
        machine.start()
        wait_for_node(instance, name)
        yield machine
    finally:
        machine.end()
        instance.run("nodes", "remove", name)


def nodes(instance: TestInstance) -> dict[str, Any]:
    """The nodes, by name."""
    found: list[dict[str, Any]] = json.loads(instance.ok("nodes", "--json"))["items"]
    return {str(node["name"]): node for node in found}


def wait_for_node(instance: TestInstance, name: str, state: str = "online") -> None:
    """Wait until a node is in this state."""
    wait_until(
        lambda: nodes(instance).get(name, {}).get("state") == state,
        what=f"{name} to be {state}",
    )
