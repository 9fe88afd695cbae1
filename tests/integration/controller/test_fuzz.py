"""Agents that say anything at all: their own links end, and nothing else is harmed."""

import asyncio
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from gpuyard.config.paths import Home
from gpuyard.config.settings import Settings
from gpuyard.controller.controller import Controller
from gpuyard.domain import wire
from gpuyard.ledger.ledger import Ledger
from gpuyard.providers.agent import AgentProvider
from gpuyard.storage.blobs import BlobStore
from tests.support.blank_ledger import blank_ledger
from tests.support.examples import examples
from tests.support.fuzz import Fuzzer
from tests.support.peer import Door, Peer, hello
from tests.support.wait import eventually

# Each example sends this many messages: `make soak` sends a million.
MESSAGES = 500
EXAMPLES = 2000 if examples(10) == 10 else 2
KINDS = [wire.Hello, *[wire.NumberedReport] * 12, wire.LogPart, wire.Found, wire.Beat]
JOBS = 4


async def no_news(timeout_s: float) -> None:
    await asyncio.sleep(0.01)


class System:
    """A controller on a real ledger, whose agents connect to a socket."""

    def __init__(self, folder: Path) -> None:
        self.ledger = Ledger.open(blank_ledger(folder / "ledger.db"))
        self.provider = AgentProvider({"epoch": 1, "heartbeat_s": 60.0})
        self.controller = Controller(
            self.ledger,
            Settings(),
            lambda _: {"agent": self.provider},
            BlobStore(folder / "blobs"),
            Home(folder),
            no_news,
        )
        self._path = folder / "socket"

    async def open(self) -> None:
        await self.controller.start()
        serve = self.provider.serve
        self._server = await asyncio.start_unix_server(serve, self._path)
        self.door = Door(self.provider, self._path)

    async def close(self) -> None:
        self.door.hang_up()
        self._server.close()
        await self.controller.close()
        self.ledger.close()

    async def run_one(self, peer: Peer) -> None:
        """Let a job run on an honest agent, from its start to its end."""
        (job_id,) = await self.controller.requests.submit(
            [{"command": ["true"], "priority": 5}]
        )
        while True:
            start = await peer.receive(wire.StartAttempt)
            if start.job_id == job_id:
                break
        attempt_id = start.attempt_id
        peer.report(wire.Started(attempt_id, 1.0, 1))
        peer.report(wire.Ended(attempt_id, 2.0, 1.0, exit_code=0))
        queries = self.controller.core.queries
        await eventually(
            lambda: queries.job(job_id)["state"] == "completed", within_s=30
        )


async def attempts_of(peer: Peer) -> list[str]:
    found: list[str] = []
    while len(found) < JOBS:
        found.append((await peer.receive(wire.StartAttempt)).attempt_id)
    return found


async def attack(system: System, seed: int) -> None:
    victim = await system.door.dial()
    await victim.join(hello("node_bad", cpus=JOBS))
    spec = {"command": ["true"], "resources": {"cpus": 1}, "priority": 1}
    await system.controller.requests.submit([spec] * JOBS)
    known = await attempts_of(victim)
    victim.writer.close()
    given_values = {
        "attempt_id": [*known, "unknown", "../x"],
        "node_id": ["node_bad", "node_bad", "node_worse"],
        "prefetched_next": ["", *known],
        "compute_capability": ["", "8.0"],
    }
    fuzzer = Fuzzer(seed, given_values)
    peer = None
    for _ in range(MESSAGES):
        if peer is None or peer.writer.is_closing():
            peer = await system.door.dial()
            peer.send(hello("node_bad", cpus=JOBS))
        peer.writer.write(fuzzer.frame(KINDS))
        # Answers are not read, as by an agent that has died.
        await asyncio.sleep(0)
        if peer._reader.at_eof():
            peer.writer.close()
    system.door.hang_up()


async def scenario(seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder, capture_logs() as logged:
        system = System(Path(folder))
        await system.open()
        await attack(system, seed)
        await eventually(
            lambda: not system.provider.agents._serving, "all links to end"
        )
        honest = await system.door.joined(hello("node_good", cpus=64))
        await system.run_one(honest)
        await system.controller.core.committed()
        names = [task.get_name() for task in asyncio.all_tasks()]
        assert names.count("agent-link") == 1
        assert names.count("forward-reports") == 1
        await system.close()
    errors = [entry for entry in logged if entry["log_level"] in ("error", "critical")]
    assert errors == []


@pytest.mark.timeout(7200)
@settings(max_examples=EXAMPLES)
@given(st.integers(0, 2**32))
def test_an_agent_that_says_anything_harms_only_its_own_link(seed: int) -> None:
    asyncio.run(scenario(seed))
