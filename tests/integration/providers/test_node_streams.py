"""The server's side of a stream: it asks over the link, and the agent connects once
more.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpuyard.domain import wire
from gpuyard.domain.errors import ClosedPortError, ProviderError, RefusedError
from tests.support.node import Recorder
from tests.support.peer import Door, hello, open_door

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[Door]:
    async with open_door(tmp_path / "agent.sock", Recorder()) as made:
        yield made


async def test_bytes_go_both_ways_beside_the_link(door: Door) -> None:
    peer = await door.joined(hello(streams=True))
    opening = asyncio.create_task(door.provider.open_stream("node_1", "a1", 8888))
    asked = await peer.receive(wire.OpenStream)
    assert (asked.attempt_id, asked.port) == ("a1", 8888)
    second = await door.dial()
    second.send(wire.JoinStream(asked.key))
    second.writer.write(b"from the agent")
    stream = await opening
    assert await stream.reader.readexactly(14) == b"from the agent"
    stream.writer.write(b"to the agent")
    assert await second.read(12) == b"to the agent"
    # The link itself is as before.
    await peer.acknowledged(peer.report(wire.Started("a1", 1.0, 1)))
    stream.close()
    assert await second.closed()


async def test_an_older_agent_is_named_and_not_asked(door: Door) -> None:
    peer = await door.joined(hello(name="gpu7", version="0.0.9"))
    with pytest.raises(RefusedError, match=r"gpu7 is of version 0\.0\.9.*gpuyard up"):
        await door.provider.open_stream("node_1", "a1")
    # It would have broken the link: the next word to it is another one.
    await peer.acknowledged(peer.report(wire.Started("a1", 1.0, 1)))


async def test_an_agent_that_passes_no_input_on_is_not_asked(door: Door) -> None:
    await door.joined(hello(name="gpu7", version="0.0.9", streams=True))
    with pytest.raises(RefusedError, match=r"gpu7 is of version 0\.0\.9.*no input"):
        await door.provider.open_stream("node_1", "a1", stdin=True)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ({"problem": "it has ended"}, RefusedError),
        ({"problem": "refused", "closed_port": True}, ClosedPortError),
    ],
    ids=["no attempt", "no port"],
)
async def test_why_there_is_no_stream_is_told(
    door: Door, answer: dict[str, object], error: type[RefusedError]
) -> None:
    peer = await door.joined(hello(streams=True))
    opening = asyncio.create_task(door.provider.open_stream("node_1", "a1", 1))
    key = (await peer.receive(wire.OpenStream)).key
    second = await door.dial()
    second.send(wire.JoinStream(key, **answer))  # pyright: ignore[reportArgumentType]
    with pytest.raises(error, match=str(answer["problem"])) as caught:
        await opening
    assert type(caught.value) is error
    assert await second.closed()


async def test_a_stream_that_nobody_asked_for_is_closed(door: Door) -> None:
    second = await door.dial()
    second.send(wire.JoinStream("guessed"))
    assert await second.closed()


async def test_an_agent_that_does_not_answer_is_given_up(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuyard.providers.node_streams._JOIN_S", 0.05)
    peer = await door.joined(hello(streams=True))
    with pytest.raises(ProviderError) as caught:
        await door.provider.open_stream("node_1", "a1")
    assert caught.value.error_code == "NO_ANSWER"
    key = (await peer.receive(wire.OpenStream)).key
    late = await door.dial()
    late.send(wire.JoinStream(key))
    assert await late.closed()


async def test_closing_the_provider_closes_its_streams(door: Door) -> None:
    peer = await door.joined(hello(streams=True))
    opening = asyncio.create_task(door.provider.open_stream("node_1", "a1"))
    key = (await peer.receive(wire.OpenStream)).key
    second = await door.dial()
    second.send(wire.JoinStream(key))
    await opening
    await door.provider.close()
    assert await second.closed()
