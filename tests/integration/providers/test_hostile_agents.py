"""Agents of machines that have joined, and what they try with their connections."""

import asyncio
import hashlib
import struct
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpuyard.config.throttle import Throttle
from gpuyard.domain import wire, wire_frames
from gpuyard.domain.jobconfig import GpuSpec, JobConfig
from gpuyard.domain.joining import Machine
from gpuyard.providers import blob_transfer
from gpuyard.providers import link as links
from gpuyard.providers.agent import AgentProvider
from gpuyard.storage.blobs import Blobs, BlobStore
from tests.support.node import Recorder
from tests.support.peer import Door, Peer, hello, open_door
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Joined:
    """A machine that has joined as `node_7` (`providers.callers.Caller`). It may do
    what it asks for.
    """

    name = "lab7"
    machine = Machine("node_7", "192.0.2.7", "192.0.2.1")

    def __init__(self, folder: Path) -> None:
        self.blobs: Blobs = BlobStore(folder)
        self.scratch = folder.parent
        self.removed = False

    def is_removed(self) -> bool:
        return self.removed

    def check_fetch(self, request: wire.FetchContents) -> None:
        pass

    def check_store(self, request: wire.StoreBlob) -> None:
        pass

    def stored(self, request: wire.StoreBlob) -> None:
        pass

    def blob_to_resume(self, attempt_id: str) -> str:
        return "0" * 64


class Lab:
    """A provider with two doors: for the node of its own, and for the machine."""

    def __init__(self, provider: AgentProvider, own: Door, path: Path) -> None:
        self.provider = provider
        self.own = own
        self.joined = Door(provider, path)


@pytest.fixture
def sink() -> Recorder:
    return Recorder()


@pytest.fixture
def caller(tmp_path: Path) -> Joined:
    return Joined(tmp_path / "blobs")


@pytest.fixture
async def lab(tmp_path: Path, sink: Recorder, caller: Joined) -> AsyncIterator[Lab]:
    async with open_door(tmp_path / "own.sock", sink, heartbeat_s=60) as own:
        provider = own.provider
        path = tmp_path / "joined.sock"
        server = await asyncio.start_unix_server(
            lambda reader, writer: provider.serve(reader, writer, caller), path
        )
        made = Lab(provider, own, path)
        try:
            yield made
        finally:
            made.joined.hang_up()
            server.close()


async def refusal(peer: Peer) -> wire.Refused:
    return await peer.receive(wire.Refused)


async def test_a_removed_machine_is_told_so_on_whatever_connection_it_kept(
    lab: Lab, caller: Joined, sink: Recorder
) -> None:
    kept = [await lab.joined.dial() for _ in range(2)]
    linked = await lab.joined.joined(hello(process="a"))
    caller.removed = True
    kept[0].send(hello(process="a"))
    kept[1].send(wire.FetchBlob("a1"))
    linked.report(wire.Started("a1", 1.0, 1))
    for peer in (*kept, linked):
        assert (await refusal(peer)).removed
        assert await peer.closed()
    assert len(sink.hellos) == 1
    assert not sink.reports


async def test_people_hear_of_a_copied_home_once_both_have_shown_to_be_alive(
    lab: Lab, sink: Recorder
) -> None:
    first = await lab.joined.joined(hello(process="a"))
    for word in ("b", "c"):
        second = await lab.joined.dial()
        second.send(hello(process=word))
        assert "Another agent" in (await refusal(second)).reason
    assert not sink.claims, "the first may be dead"
    for _ in range(9):
        first.send(wire.Beat())
        await first.receive(wire.Beat)
    assert sink.claims == [("node_7", "192.0.2.7")]


async def test_who_has_the_token_only_is_no_machine_that_has_joined(
    lab: Lab, sink: Recorder
) -> None:
    sink.certified.add("node_7")
    stranger = await lab.own.dial()
    stranger.send(hello("node_7", process="a"))
    assert "comes in with its certificate only" in (await refusal(stranger)).reason
    assert await stranger.closed()
    assert not sink.hellos
    await lab.joined.joined(hello("node_7", process="a"))


@pytest.mark.parametrize(
    ("version", "welcome"),
    [
        ("1.4.9", True),
        ("1.5.3", True),
        ("1.6.0", True),
        ("1.3.9", False),
        ("1.7.0", False),
        ("2.5.0", False),
    ],
)
async def test_an_agent_one_minor_version_apart_is_welcomed(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, version: str, welcome: bool
) -> None:
    monkeypatch.setattr("gpuyard.providers.connected_agents.__version__", "1.5.0")
    said = hello(process="a", version=version)
    if welcome:
        await lab.joined.joined(said)
        return
    peer = await lab.joined.dial()
    peer.send(said)
    assert "at most one minor version apart" in (await refusal(peer)).reason


async def test_an_agent_that_was_killed_is_no_copy(lab: Lab, sink: Recorder) -> None:
    first = await lab.joined.joined(hello(process="a"))
    second = await lab.joined.dial()
    second.send(hello(process="b"))
    await refusal(second)
    # What it had left unread comes late, and then its end.
    first.send(wire.Beat(), wire.Beat())
    first.writer.close()
    await eventually(lambda: sink.left == ["node_7"], "its end to be seen")
    await lab.joined.joined(hello(process="b"))
    assert not sink.claims


async def test_the_attempts_of_others_stay_theirs(lab: Lab) -> None:
    owner = await lab.own.joined(hello("node_1"))
    seq = owner.report(wire.Started("a1", 1.0, 1))
    await owner.acknowledged(seq)
    held = wire.HeldAttempt("a1", 1, "running")
    liar = await lab.joined.joined(hello(process="a", attempts=[held]))
    await liar.acknowledged(
        liar.report(wire.Ended("a1", 2.0, 1.0, exit_code=0), wire.Started("a1", 2.0, 1))
    )
    assert (await lab.provider.get_job_status("a1")).status == "running"
    reading = asyncio.ensure_future(anext(aiter(_log(lab.provider))))
    asked = await owner.receive(wire.ReadLog)
    owner.send(wire.LogPart(asked.request, 0, b"mine", True))
    assert await reading == b"mine"


async def test_who_claims_an_attempt_first_keeps_nobody_from_starting_it(
    lab: Lab,
) -> None:
    """After a restart of the server, which has not sent it yet."""
    owner = await lab.own.joined(hello("node_1"))
    held = wire.HeldAttempt("a1", 1, "running")
    liar = await lab.joined.joined(hello(process="a", attempts=[held]))
    await liar.acknowledged(liar.report(wire.Ended("a1", 2.0, 1.0, exit_code=0)))
    config = JobConfig(
        name="test",
        command=("true",),
        gpu_spec=GpuSpec(gpu_count=0),
        attempt_id="a1",
        provider_options={"node_id": "node_1"},
    )
    await lab.provider.submit_job(config)
    assert (await owner.receive(wire.StartAttempt)).attempt_id == "a1"
    await owner.acknowledged(owner.report(wire.Started("a1", 3.0, 1)))
    assert (await lab.provider.get_job_status("a1")).status == "running"


async def _log(provider: AgentProvider) -> AsyncIterator[bytes]:
    async for part in provider.stream_logs("a1", lines=None, follow=False):
        yield part


async def test_a_log_is_asked_of_the_node_that_has_it_and_no_other(lab: Lab) -> None:
    """After a restart of the server, nobody has said yet where an old attempt was."""
    owner = await lab.own.joined(hello("node_1"))
    await lab.joined.joined(hello(process="a"))  # it never answers
    pieces = lab.provider.stream_log_pieces_of(
        "node_1", "old", offset=0, lines=None, follow=False
    )
    reading = asyncio.ensure_future(anext(aiter(pieces)))
    asked = await owner.receive(wire.ReadLog)
    owner.send(wire.LogPart(asked.request, 0, b"mine", True))
    assert (await reading).data == b"mine"


async def test_a_checkpoint_on_its_way_is_not_in_the_systems_temporary_folder(
    lab: Lab, caller: Joined, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That may be small, or in memory."""
    monkeypatch.setattr(blob_transfer, "_IN_MEMORY", 10)
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    data = b"x" * 100
    sha256 = hashlib.sha256(data).hexdigest()
    peer = await lab.joined.dial()
    peer.send(
        wire.StoreBlob("a1", sha256, len(data)),
        wire.BlobPart(data),
        wire.BlobPart(end=True),
    )
    await peer.receive(wire.BlobStored)
    assert caller.blobs.has(sha256)


def _endless() -> bytes:
    return struct.pack(">I", wire_frames.MAX_FRAME_OF_OTHERS + 1)


def _gpus() -> bytes:
    gpus = [wire.GpuStatus(f"GPU-{n}", n, "T4", 1) for n in range(1025)]
    return wire_frames.encode(hello(gpus=gpus))


def _long_name() -> bytes:
    return wire_frames.encode(hello(gpus=[wire.GpuStatus("G" * 300, 0, "T4", 1)]))


@pytest.mark.parametrize("said", [_endless(), _gpus(), _long_name()])
async def test_who_says_too_much_at_once_is_cut_off(
    lab: Lab, sink: Recorder, said: bytes
) -> None:
    peer = await lab.joined.dial()
    peer.writer.write(said)
    assert await peer.closed()
    assert not sink.hellos


async def test_who_does_not_read_what_it_asks_for_is_cut_off(
    lab: Lab, sink: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "_MOST_UNREAD", 1000)
    peer = await lab.joined.joined(hello(process="a"))
    frame = wire_frames.encode(wire.Beat()) * 10_000
    while not sink.left:
        try:
            peer.writer.write(frame)
            await peer.writer.drain()
        except ConnectionError:
            break
    await eventually(lambda: sink.left == ["node_7"], "it to be cut off")


async def test_who_reports_faster_than_is_committed_has_to_wait(
    lab: Lab, sink: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "_MOST_REPORTS", 10)
    held = asyncio.Event()
    largest = 0

    async def reported(node_id: str, bodies: list[wire.NumberedReport]) -> None:
        nonlocal largest
        largest = max(largest, len(bodies))
        await held.wait()

    monkeypatch.setattr(sink, "reported", reported)
    peer = await lab.joined.joined(hello(process="a"))
    last = peer.report(*[wire.Started("a1", 1.0, 1)] * 100)
    await eventually(lambda: largest > 0, "the first of them")
    held.set()
    await peer.acknowledged(last)
    assert largest <= 10


BAD = wire.ProgressSeen("a1", {"step": 2**60})


async def test_a_report_that_cannot_be_read_is_left_out_and_the_others_count(
    lab: Lab, sink: Recorder
) -> None:
    peer = await lab.own.joined()
    started = wire.Started("a1", 1.0, 1)
    end = wire.Ended("a1", 2.0, 1.0, exit_code=0)
    await peer.acknowledged(peer.report(BAD, started, BAD, BAD, end))
    assert sink.reports == [started, end]
    # Alone, it is acknowledged, too: else the agent would repeat it on each link.
    await peer.acknowledged(peer.report(BAD))
    assert sink.left == []


async def test_who_sends_only_reports_that_cannot_be_read_is_slowed_down(
    lab: Lab, sink: Recorder
) -> None:
    agents = lab.provider.agents
    agents._unreadable_pace = Throttle(per_s=1e-9, burst=3)
    peer = await lab.own.joined()
    good = wire.Started("a1", 1.0, 1)
    peer.report(*[BAD] * 20, good)
    await eventually(lambda: agents._left_out["node_1"] == 4, "it to be slowed down")
    other = await lab.own.joined(hello("node_2"))
    await other.acknowledged(other.report(good))
    assert sink.reports == [good], "only that of the other agent"
    assert agents._left_out == {"node_1": 4}
