"""Commands beside running jobs."""

import asyncio
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from gpuyard.domain import stream_frames as frames
from gpuyard.providers.commands import CommandStream
from gpuyard.providers.conformance.subject import Subject, case, need

# More than is under way at once anywhere.
_SIZE = 300_000
_PATIENCE_S = 30.0
# Prints where it runs, and stays until it is ended.
_STAY_THERE = """
    import os, time
    print(os.getcwd(), flush=True)
    while True:
        time.sleep(0.05)
    """


class _TestedCommand:
    """The client's end of a command beside a job."""

    def __init__(self, stream: CommandStream) -> None:
        self._stream = stream
        self._frames = frames.agent_frames()
        self._received: list[frames.FromAgent] = []
        self.output = b""
        self.errors = b""
        self.exited: frames.Exited | None = None

    def send(self, frame: frames.FromClient) -> None:
        self._stream.writer.write(frames.encode(frame))

    async def feed(self, data: bytes) -> None:
        """Give it all input, and end that; read its output meanwhile."""
        for start in range(0, len(data), frames.PART):
            part = data[start : start + frames.PART]
            self.send(frames.Input(part))
            taken = 0
            while taken < len(part):
                taken += await self._read()
        self.send(frames.InputEnd())

    async def _read(self) -> int:
        """Read once; how many bytes of input were taken. AssertionError at its end."""
        data = await self._stream.reader.read(frames.PART)
        assert data, f"the stream broke off after {self.output[-200:]!r}"
        taken = 0
        for frame in self._frames.feed(data):
            match frame:
                case frames.Output():
                    self.output += frame.data
                case frames.ErrorOutput():
                    self.errors += frame.data
                case frames.Taken():
                    taken += frame.count
                case frames.Exited():
                    self.exited = frame
                case _:
                    raise AssertionError(f"the command was not started: {frame}")
        return taken

    async def shows(self, text: bytes) -> None:
        """Wait until it has put this out."""
        while text not in self.output:
            await self._read()

    async def interrupt_until(self, text: bytes) -> None:
        """Press Ctrl-C, at which it shows its size, until it shows this: a size takes
        its own way.
        """
        while text not in self.output:
            self.output = b""
            self.send(frames.Input(b"\x03"))
            await self.shows(b"int\r\n")

    async def ended(self) -> frames.Exited:
        """Wait for its end."""
        while self.exited is None:
            await self._read()
        return self.exited


@asynccontextmanager
async def _command(
    subject: Subject, job_id: str, *words: str, terminal: str = ""
) -> AsyncGenerator[_TestedCommand]:
    provider = subject.provider

    async def is_over() -> bool:
        return (await provider.get_job_status(job_id)).status.is_over

    stream = await CommandStream.open(
        lambda request: provider.start_command(job_id, request), is_over
    )
    command = _TestedCommand(stream)
    command.send(frames.RunCommand(list(words), terminal, 31, 97))
    try:
        async with asyncio.timeout(_PATIENCE_S):
            yield command
    except TimeoutError:
        raise AssertionError(f"it has said only {command.output[-300:]!r}") from None
    finally:
        stream.close()


async def _says(subject: Subject, job_id: str, words: Sequence[str]) -> str:
    async with _command(subject, job_id, *words) as command:
        command.send(frames.InputEnd())
        await command.ended()
    return command.output.decode()


async def check_command_beside(subject: Subject) -> None:
    """A command beside a job has its environment and folder, takes and gives each byte,
    and tells its exit code.
    """
    need(subject.provider.runs_commands, "it runs no commands beside jobs")
    job = subject.job(_STAY_THERE)
    job_id = await subject.running(job)
    folder = await subject.provider.get_job_logs(job_id)
    told = await _says(subject, job_id, ["sh", "-c", "pwd; echo $GPUYARD_ATTEMPT_ID"])
    assert told == f"{folder}{job.attempt_id}\n", f"it is elsewhere: {told!r}"

    data = os.urandom(_SIZE)
    words = ("sh", "-c", "cat; echo wrong >&2; exit 7")
    async with _command(subject, job_id, *words) as command:
        await command.feed(data)
        exited = await command.ended()
    assert command.output == data, "its output should be what it was given"
    assert command.errors == b"wrong\n", f"standard error: {command.errors!r}"
    assert exited == frames.Exited(7), f"exit code 7 should be told, not {exited}"

    async with _command(subject, job_id, "no-such-program") as command:
        command.send(frames.InputEnd())
        exited = await command.ended()
    assert exited.code == 127, f"a missing program is 127, not {exited}"
    assert b"no-such-program" in command.errors, f"nothing says it: {command.errors!r}"


async def check_terminal_beside(subject: Subject) -> None:
    """A command on a terminal knows its kind and size, gets Ctrl-C, and ends when its
    client goes.
    """
    need(subject.provider.runs_commands, "it runs no commands beside jobs")
    job_id = await subject.running(subject.job(_STAY_THERE))
    script = 'trap "stty size; echo int" INT; echo $TERM; while :; do sleep 0.1; done'
    words = ("sh", "-c", script)
    async with _command(subject, job_id, *words, terminal="vt100") as command:
        await command.shows(b"vt100\r\n")
        await command.interrupt_until(b"31 97\r\n")
        command.send(frames.Resize(24, 80))
        await command.interrupt_until(b"24 80\r\n")


async def check_command_without_client(subject: Subject) -> None:
    """A command whose client goes is ended; the job goes on."""
    need(subject.provider.runs_commands, "it runs no commands beside jobs")
    job_id = await subject.running(subject.job(_STAY_THERE))
    words = ("sh", "-c", "echo $$; exec sleep 1000")
    async with _command(subject, job_id, *words) as command:
        await command.shows(b"\n")
    pid = command.output.decode().strip()
    look = ["sh", "-c", f"kill -0 {pid} 2> /dev/null && echo there || echo gone"]
    async with asyncio.timeout(subject.patience_s):
        while True:
            if await _says(subject, job_id, look) == "gone\n":
                break
            await asyncio.sleep(subject.pause_s)
    result = await subject.provider.get_job_status(job_id)
    assert result.status.is_live, f"the job should go on: {result}"


CASES = tuple(
    case(check)
    for check in (
        check_command_beside,
        check_terminal_beside,
        check_command_without_client,
    )
)
