"""The stream that carries a command which a provider starts beside a job."""

import asyncio

import pytest

from gpuyard.domain import stream_frames as frames
from gpuyard.domain.errors import ProviderError
from gpuyard.domain.stream_frames import RunCommand
from gpuyard.providers.commands import CommandStream, JobCommand

pytestmark = pytest.mark.anyio
REQUEST = RunCommand(["true"])


class Puppet:
    """A command whose output and end the test decides."""

    def __init__(self) -> None:
        self.output = asyncio.Queue[bytes]()
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.ended = asyncio.Event()
        self.closed = asyncio.Event()
        self.written = b""

    async def read_output(self, size: int) -> bytes:
        return await self.output.get()

    async def read_errors(self, size: int) -> bytes:
        return b""

    async def write(self, data: bytes) -> None:
        self.written += data
        if b"full" in data:
            raise BrokenPipeError

    async def end_input(self) -> None:
        self.written += b"<end>"

    async def resize(self, rows: int, columns: int) -> None:
        self.written += f"<{rows}x{columns}>".encode()

    async def exit_code(self) -> int:
        return await self.exited

    async def end(self) -> None:
        self.ended.set()

    async def close(self) -> None:
        self.closed.set()


class Client:
    """The client's end."""

    def __init__(self, stream: CommandStream) -> None:
        self.stream = stream
        self._frames = frames.agent_frames()

    def send(self, *sent: frames.FromClient) -> None:
        for frame in sent:
            self.stream.writer.write(frames.encode(frame))

    async def rest(self) -> list[frames.FromAgent]:
        """All frames to the end."""
        data = await self.stream.reader.read()
        return self._frames.feed(data)


async def opened(command: Puppet, *, is_over: bool = False) -> Client:
    async def start(request: RunCommand) -> JobCommand:
        assert request == REQUEST
        return command

    async def over() -> bool:
        return is_over

    client = Client(await CommandStream.open(start, over))
    client.send(REQUEST)
    return client


async def test_it_carries_input_output_and_the_exit_code() -> None:
    command = Puppet()
    client = await opened(command)
    client.send(frames.Input(b"in"), frames.Resize(3, 4), frames.InputEnd())
    for part in (b"out", b""):
        command.output.put_nowait(part)
    command.exited.set_result(7)
    assert set(await client.rest()) == {
        frames.Taken(2),
        frames.Output(b"out"),
        frames.Exited(7),
    }
    client.stream.close()
    await command.closed.wait()
    assert command.written.replace(b"<3x4>", b"") == b"in<end>"
    assert not command.ended.is_set()


async def test_a_client_that_goes_ends_it() -> None:
    command = Puppet()
    client = await opened(command)
    # What the command does not take is no reason to end it.
    client.send(frames.Input(b"full"), frames.Input(b"more"))
    client.stream.close()
    await command.ended.wait()
    await command.closed.wait()


@pytest.mark.parametrize("is_over", [True, False])
async def test_a_connection_that_breaks_is_the_end_if_the_job_is_over(
    is_over: bool,
) -> None:
    command = Puppet()
    client = await opened(command, is_over=is_over)
    command.output.put_nowait(b"")
    command.exited.set_exception(ConnectionError("cut"))
    told = [frames.Exited(137, with_job=True)] if is_over else []
    assert await client.rest() == told
    client.stream.close()
    await command.closed.wait()


async def test_one_that_cannot_be_started_says_why() -> None:
    async def start(_: RunCommand) -> JobCommand:
        raise ProviderError("No pod runs.", "kubernetes", "NOT_RUNNING")

    async def over() -> bool:
        return False

    client = Client(await CommandStream.open(start, over))
    client.send(REQUEST)
    (frame,) = await client.rest()
    assert isinstance(frame, frames.NotStarted)
    assert frame.message == "No pod runs."
    client.stream.close()
