"""A server that says anything at all: the agent ends the link, calls again, and works
with the next one as if nothing had been.
"""

import asyncio
import os
from contextlib import suppress

import psutil
import pytest

from gpuyard.domain import wire
from tests.integration.node.test_agent_dials import by_hand, ended, start
from tests.support.examples import examples
from tests.support.fuzz import Fuzzer
from tests.support.node import Node

# No Start and no Leave: what they do is tested elsewhere, and is no harm.
KINDS = [
    wire.StopAttempt,
    wire.Acknowledge,
    wire.Forget,
    wire.ReadLog,
    wire.Find,
    wire.Release,
    wire.Beat,
]
GIVEN = {
    "attempt_id": ["known", "unknown"],
    "attempt_ids": [["unknown"], []],
    "wait_s": [0.0, 0.01],
    "epoch": [0, 1],
    "limit": [0, 1, 1000],
}
# A link lasts for about 25 messages: `make soak` sends a million.
LINKS = 40_000 if examples(10) == 10 else 4
MESSAGES = 2500
MOST_S = 7200
# asyncio's pool for what blocks grows to this, and no further.
MOST_THREADS = min(32, (os.cpu_count() or 1) + 4)


@pytest.mark.timeout(MOST_S)
def test_a_server_that_says_anything_harms_no_agent(node: Node) -> None:
    agent = psutil.Process(node.pid("agent"))

    async def scenario(server) -> None:
        await server.welcome()
        server.send(start("known"))
        await server.reports(ended)
        before = agent.num_fds(), agent.num_threads()
        for seed in range(LINKS):
            server.writer.close()
            await server.welcome()
            fuzzer = Fuzzer(seed, GIVEN)
            reading = asyncio.create_task(server.hung_up())
            with suppress(ConnectionError):
                for _ in range(MESSAGES):
                    if reading.done():
                        break
                    server.writer.write(fuzzer.frame(KINDS))
                    await server.writer.drain()
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        server.writer.close()
        await server.welcome()
        server.send(start("last", command=("sh", "-c", "exit 3")))
        reports = await server.reports(
            lambda body: ended(body) and body.attempt_id == "last"
        )
        assert reports[-1].body.exit_code == 3
        assert abs(agent.num_fds() - before[0]) <= 2
        assert agent.num_threads() - before[1] <= MOST_THREADS

    by_hand(node, scenario, timeout=MOST_S)
    assert node.pid("agent") == agent.pid
    assert "Traceback" not in (node.home.logs / "node.log").read_text()
