"""One run of a container: a real process that is the init of namespaces of its own."""

import asyncio
import marshal
import os
import secrets
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.support.kubernetes.logs import Log
from tests.support.kubernetes.volumes import Mount

_LAUNCHER = Path(__file__).with_name("launcher.py")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class Order:
    """What to run; `told` is where the file of its last words is made.

    `beside_pause`: process 1 is not the command but one that only reaps. `user`, `group`
    and `volume_group`: who it is; None for root.
    """

    told: str
    command: list[str]
    environment: dict[str, str]
    workdir: str
    hostname: str
    mounts: list[Mount]
    beside_pause: bool = False
    user: int | None = None
    group: int | None = None
    volume_group: int | None = None


@dataclass(frozen=True, slots=True)
class Streams:
    """The ends that a command beside gets."""

    input: int
    output: int
    errors: int
    terminal: bool


@dataclass(frozen=True, slots=True)
class Beside:
    """A command in a container that runs. On `status` comes why it could not start."""

    process: subprocess.Popen[bytes]
    status: int

    async def ended(self) -> tuple[int, str]:
        """Its exit code, or why it could not start."""
        reader = await reader_of(self.status)
        _, _, failure = (await reader.read()).decode().strip().partition(" ")
        await _gone(self.process.pid)
        return self.process.wait(), failure


class Container:
    """Started once. `oom` is set when it was killed for its memory."""

    def __init__(self, order: Order, log: Log, memory: int | None) -> None:
        self._order = order
        self._log = log
        self._memory = memory
        self._process: subprocess.Popen[bytes] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._init = 0
        self.oom = False

    async def start(self) -> str:
        """Start it; returns why it could not be, or nothing."""
        told = Path(self._order.told)
        told.touch()
        told.chmod(0o666)
        spec = told.with_suffix(".spec")
        spec.write_bytes(marshal.dumps(asdict(self._order)))
        status_in, status_out = os.pipe()
        log_in, log_out = os.pipe()
        self._reading = asyncio.create_task(self._read(log_in))
        try:
            self._process = _spawn(spec, status_out, log_out)
        finally:
            os.close(status_out)
            os.close(log_out)
        return await self._begin(status_in)

    async def _begin(self, status: int) -> str:
        """Hear of the launcher until the command runs."""
        reader = await reader_of(status)
        failure = ""
        while line := (await reader.readline()).decode():
            word, _, rest = line.strip().partition(" ")
            if word == "pid":
                self._init = int(rest)
            else:
                failure = rest
        return failure

    async def _read(self, pipe: int) -> None:
        reader = await reader_of(pipe)
        while data := await reader.read(1 << 16):
            self._log.write(data)

    async def wait(self) -> int:
        """Its exit code, once its last process is gone and all is read that they
        printed.
        """
        assert self._process and self._reading
        watching = asyncio.create_task(self._watch()) if self._memory else None
        try:
            await asyncio.shield(self._reading)
            if self._process.poll() is None:
                await _gone(self._process.pid)
        finally:
            if watching:
                watching.cancel()
        return self._process.wait()

    async def _watch(self) -> None:
        while True:
            if _resident(self._init) > (self._memory or 0):
                self.oom = True
                self.send(signal.SIGKILL)
            await asyncio.sleep(_LOOK_S)

    def is_running(self) -> bool:
        return (
            bool(self._init)
            and self._process is not None
            and self._process.poll() is None
        )

    def start_beside(self, command: list[str], streams: Streams) -> Beside:
        """A command in it, with its environment, folder and user."""
        spec = Path(f"{self._order.told}-{secrets.token_hex(4)}.spec")
        order = asdict(self._order)
        order |= {"command": command, "terminal": streams.terminal}
        spec.write_bytes(marshal.dumps(order))
        status_in, status_out = os.pipe()
        try:
            process = subprocess.Popen(
                [*_words(spec, status_out), "--beside", str(self._init)],
                stdin=streams.input,
                stdout=streams.output,
                stderr=streams.errors,
                pass_fds=(status_out,),
                start_new_session=True,
            )
        finally:
            os.close(status_out)
        return Beside(process, status_in)

    def send(self, number: int) -> None:
        """A signal to its init, which as such ignores what it does not handle."""
        if self._process and self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self._init or self._process.pid, number)

    def destroy(self) -> None:
        """It and all of its processes are dead when this returns."""
        if self._process:
            self.send(signal.SIGKILL)
            self._process.wait(60)
        if self._reading:
            self._reading.cancel()

    def message(self) -> str:
        """What it wrote to its termination log."""
        with suppress(OSError):
            return Path(self._order.told).read_text(errors="replace")[:4096]
        return ""


def _words(spec: Path, status: int) -> list[str]:
    python = f"{sys.base_prefix}/bin/python3"
    return [python, "-I", "-S", str(_LAUNCHER), str(spec), str(status)]


def _spawn(spec: Path, status: int, log: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        _words(spec, status),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        pass_fds=(status,),
        start_new_session=True,
    )


async def reader_of(pipe: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(pipe, "rb", 0)
    )
    return reader


async def _gone(pid: int) -> None:
    """Wait until a child has ended, and leave it to be reaped."""
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    watched = os.pidfd_open(pid)
    loop.add_reader(watched, over.set)
    try:
        await over.wait()
    finally:
        loop.remove_reader(watched)
        os.close(watched)


def _resident(pid: int) -> int:
    """The memory of a process and all below it, in bytes."""
    total = 0
    with suppress(OSError, ValueError):
        total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                total += _resident(int(child))
    return total
