"""What the agent does when it is itself at fault."""

import asyncio

from gpuyard.config.paths import Home
from gpuyard.config.settings import NodeSettings
from gpuyard.domain import wire, wire_frames
from gpuyard.node.agent import Agent
from gpuyard.storage.blobs import BlobStore


def test_an_attempt_is_never_left_without_an_end(tmp_path):
    """Whatever fails in following it, it ends, and an agent that comes after knows
    it.
    """
    home = Home(tmp_path / "home")
    home.create()
    start = wire.StartAttempt("a1", 1, 1, "job_1", ["true"], {}, gpu_uuids=["GPU-1"])

    async def fails():
        raise RuntimeError("a fault of ours")

    async def scenario():
        agent = Agent(home, NodeSettings(), BlobStore(home.blobs), home.workspaces)
        attempt = agent.attempts.remember(agent.journal.intend(start, "boot"))
        await agent.attempts.attend(attempt, fails())
        return agent, attempt

    agent, attempt = asyncio.run(scenario())
    assert not attempt.live
    (waiting,) = agent._outbox._waiting
    report = wire_frames.decode_from_agent(waiting.frame[4:])
    assert report.body.reason == "agent_failed"
    assert "a fault of ours" in report.body.message
    (record,) = agent.journal.records()
    assert record.ended == report.body
