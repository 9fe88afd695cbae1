"""The agent's end of the link: it dials again whatever happens, repeats what was not
acknowledged, and minds epochs.
"""

import asyncio
import struct
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest

from gpuyard.domain import wire, wire_frames
from tests.support.node import Node, gone, make_node, wait_for

T = TypeVar("T")
PATIENCE_S = 20.0


@pytest.fixture(scope="module")
def shared():
    """A node whose server's end is played by hand in each test."""
    with make_node() as node:
        node.close()
        yield node


class Server:
    """The server's end, by hand. `hello` is the agent's, on the newest link."""

    def __init__(self) -> None:
        self._links: asyncio.Queue[
            tuple[asyncio.StreamReader, asyncio.StreamWriter]
        ] = asyncio.Queue()

    async def take(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._links.put_nowait((reader, writer))

    async def accept(self) -> wire.Hello:
        """Wait for the agent to dial; its Hello."""
        self._reader, self.writer = await asyncio.wait_for(
            self._links.get(), PATIENCE_S
        )
        return await self.receive(wire.Hello)

    async def welcome(self, epoch: int = 1) -> wire.Hello:
        hello = await self.accept()
        self.send(wire.Welcome(epoch))
        return hello

    def send(self, *messages: wire.ToAgent) -> None:
        for message in messages:
            self.writer.write(wire_frames.encode(message))

    async def receive(self, kind: type[T]) -> T:
        """The next message of this kind; reports that come before it are passed
        over.
        """
        async with asyncio.timeout(PATIENCE_S):
            while True:
                header = await self._reader.readexactly(4)
                message = wire_frames.decode_from_agent(
                    await self._reader.readexactly(wire_frames.frame_length(header))
                )
                if isinstance(message, kind):
                    return message
                assert isinstance(message, wire.NumberedReport), (
                    f"a {kind.__name__} should come, not {message}"
                )

    async def reports(self, until: Callable[[Any], bool]) -> list[wire.NumberedReport]:
        """Read reports up to the one whose body meets the condition."""
        got = [await self.receive(wire.NumberedReport)]
        while not until(got[-1].body):
            got.append(await self.receive(wire.NumberedReport))
        return got

    async def hung_up(self) -> None:
        """Wait for the agent to end the link."""
        async with asyncio.timeout(PATIENCE_S):
            while await self._reader.read(65536):
                pass


@asynccontextmanager
async def serving(node: Node) -> AsyncIterator[Server]:
    server = Server()
    listener = await asyncio.start_unix_server(server.take, node.home.socket)
    try:
        yield server
    finally:
        listener.close()
        server.writer.close()


def start(
    attempt_id: str, epoch: int = 1, command: tuple[str, ...] = ("true",)
) -> wire.StartAttempt:
    return wire.StartAttempt(attempt_id, 1, epoch, "job_1", list(command), {})


def ended(body: Any) -> bool:
    return isinstance(body, wire.Ended)


def by_hand(node: Node, scenario: Callable[[Server], Any], timeout: float = 60) -> None:
    """Run a scenario with a server by hand in the provider's place."""

    async def run() -> None:
        async with serving(node) as server:
            await scenario(server)

    node.loop.run(node.provider.close())
    node.loop.run(run(), timeout)


def test_it_dials_again_when_the_server_comes_back_and_says_the_same(node):
    first = node.linked()
    for count in (2, 3):
        node.close()
        node.open()
        again = node.linked(count)
        assert (again.node_id, again.boot_id, again.name) == (
            first.node_id,
            first.boot_id,
            first.name,
        )
    assert first.node_id.startswith("node_")
    assert first.cpus >= 1
    assert first.memory_gb > 0
    assert first.version
    agent = node.pid("agent")
    node.kill("agent")
    node.next_agent(agent)
    assert node.linked(4).node_id == first.node_id


def test_reports_are_repeated_in_order_until_they_are_acknowledged(node):
    async def scenario(server):
        await server.welcome()
        server.send(start("a1"), start("a2", command=("false",)))
        first = await server.reports(
            lambda body: ended(body) and body.attempt_id == "a2"
        )
        first += (
            []
            if len([r for r in first if ended(r.body)]) == 2
            else await server.reports(ended)
        )
        server.writer.close()
        await server.welcome()
        again = await server.reports(lambda body: body == first[-1].body)
        assert again == first
        assert [report.seq for report in again] == list(
            range(again[0].seq, again[0].seq + len(again))
        )
        server.send(wire.Acknowledge(again[-2].seq))
        server.send(wire.Find(1, "a1"))  # answered after the acknowledgement was heard
        await server.receive(wire.Found)
        server.writer.close()
        await server.welcome()
        assert await server.receive(wire.NumberedReport) == again[-1]
        server.send(wire.Acknowledge(again[-1].seq))
        server.send(wire.Find(2, "a1"))
        await server.receive(wire.Found)
        server.writer.close()
        await server.welcome()
        server.send(wire.Find(3, "a1"))
        assert (await server.receive(wire.Found)).state == "ended"

    by_hand(node, scenario)


def test_reports_that_could_not_be_committed_come_again(node):
    node.sink.full = True
    job = node.start("pass")
    wait_for(
        lambda: [body for body in node.sink.refused if ended(body)],
        "reports that are not taken",
    )
    node.sink.full = False
    assert node.ended(job).exit_code == 0
    assert [len(node.sink.of(kind, job)) for kind in (wire.Started, wire.Ended)] == [
        1,
        1,
    ]


GARBAGE = {
    "noise": b"\xde\xad\xbe\xef" * 64,
    "an absurd length": struct.pack(">I", wire_frames.MAX_FRAME + 1),
    "no msgpack": struct.pack(">I", 4) + b"\xc1\xc1\xc1\xc1",
    "not one of ours": struct.pack(">I", 2) + b"\x91\x01",
    "the agent's own words": wire_frames.encode(wire.Found(1, "a", "b")),
    "a second Welcome": wire_frames.encode(wire.Welcome(1)),
    "a frame cut short": wire_frames.encode(start("a1"))[:-3],
    "nothing": b"",
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_ends_the_link_and_the_agent_dials_again(shared, garbage):
    agent = shared.pid("agent")
    job = f"attempt_{uuid.uuid4().hex}"

    async def scenario(server):
        await server.welcome()
        server.writer.write(garbage)
        server.writer.write_eof()
        await server.hung_up()
        await server.welcome()
        server.send(start(job))
        last = (await server.reports(ended))[-1]
        assert last.body.exit_code == 0
        server.send(wire.Acknowledge(last.seq))

    by_hand(shared, scenario)
    assert shared.pid("agent") == agent


def test_a_server_whose_epoch_is_over_is_refused(node):
    async def scenario(server):
        await server.welcome(epoch=5)
        server.send(start("stale", epoch=4), start("fresh", epoch=5))
        fresh = await server.reports(ended)
        assert {report.body.attempt_id for report in fresh} == {"fresh"}
        server.send(start("runs", epoch=6, command=("sleep", "1000")))
        await server.reports(lambda body: isinstance(body, wire.Started))
        server.send(
            wire.StopAttempt("runs", 4), wire.Find(1, "runs"), wire.Find(2, "stale")
        )
        assert (await server.receive(wire.Found)).state == "running"
        assert (await server.receive(wire.Found)).state == "absent"
        server.writer.close()
        hello = await server.welcome(epoch=4)
        assert hello.epoch >= 5
        await server.hung_up()
        await server.welcome(epoch=6)
        server.send(wire.StopAttempt("runs", 6))
        last = (
            await server.reports(lambda body: ended(body) and body.attempt_id == "runs")
        )[-1]
        assert last.body.stopped == "cancelled"

    by_hand(node, scenario)


def test_the_same_attempt_sent_twice_runs_once(node):
    async def scenario(server):
        await server.welcome()
        once = start("a1", command=("sh", "-c", "echo ran"))
        server.send(once, once)
        await server.reports(ended)
        server.send(once, wire.Find(1, "a1"))
        assert (await server.receive(wire.Found)).state == "ended"

    by_hand(node, scenario)
    assert node.output("a1") == "ran\n"


def test_logs_are_read_by_offset_and_waited_for(node):
    async def scenario(server):
        await server.welcome()
        server.send(start("a1", command=("sh", "-c", "echo one; read line; echo two")))
        await server.reports(ended)

        async def read(*question: Any, **more: Any) -> wire.LogPart:
            server.send(wire.ReadLog(7, *question, **more))
            return await server.receive(wire.LogPart)

        assert await read("a1", 0) == wire.LogPart(7, 0, b"one\ntwo\n", end=True)
        assert await read("a1", 4) == wire.LogPart(7, 4, b"two\n", end=True)
        assert await read("a1", 0, 3) == wire.LogPart(7, 0, b"one", end=False)
        assert await read("a1", 8, wait_s=60) == wire.LogPart(7, 8, b"", end=True)
        assert await read("a1", -1, tail_lines=1) == wire.LogPart(
            7, 4, b"two\n", end=True
        )
        assert await read("a1", -1, tail_lines=0) == wire.LogPart(7, 8, b"", end=True)
        assert await read("nobody", 0) == wire.LogPart(
            7, 0, b"", end=True, missing=True
        )

    by_hand(node, scenario)


def test_logs_that_nobody_takes_hold_up_no_other_message(node):
    """One part at a time waits in the link, however many were asked for."""
    parts = 500
    part_bytes = 1 << 16

    async def scenario(server):
        await server.welcome()
        server.send(start("a1", command=("head", "-c", "1000000", "/dev/zero")))
        await server.reports(ended)
        server.send(*(wire.ReadLog(n, "a1", 0, limit=part_bytes) for n in range(parts)))
        await server.receive(wire.LogPart)
        server.send(wire.Find(parts, "a1"))
        before = 0
        while True:
            message = await server.receive(wire.LogPart | wire.Found)
            if isinstance(message, wire.Found):
                break
            before += 1
        assert before < parts // 2
        for _ in range(parts - 1 - before):
            assert len((await server.receive(wire.LogPart)).data) == part_bytes

    by_hand(node, scenario)


@pytest.mark.real_agent
def test_told_to_leave_it_leaves_its_jobs_to_the_next_agent(node):
    job = node.start("print('here', flush=True); import time; time.sleep(1000)")
    node.says(job, "here")
    agent = node.pid("agent")
    keeper = node.pid("keeper")
    node.provider._guard.cancel()
    node.loop.run(node.provider.dismiss())
    gone(agent)
    node.close()
    node.open()
    assert [(seen.attempt_id, seen.state) for seen in node.linked(2).attempts] == [
        (job, "running")
    ]
    assert node.pid("keeper") != keeper
    node.stop(job)
    ended = node.ended(job)
    assert (ended.stopped, ended.reason, ended.signal) == ("cancelled", "", 15)
