"""Commands beside Slurm jobs: a step of the job (`srun --overlap`), whose `srun` runs
on the site.

The runner starts the command in the step, with the environment and in the folder of
the job's program. A batch script has no runner: there the command has the environment
that Slurm gives a step.
"""

import asyncio
import fcntl
import os
import signal
import struct
import termios
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from dataclasses import dataclass

from gpuyard.config.descriptor import Descriptor
from gpuyard.domain.errors import ProviderError
from gpuyard.domain.stream_frames import RunCommand
from gpuyard.providers.attempt_folder import AttemptFolder, read_json
from gpuyard.providers.commands import new_mark
from gpuyard.providers.slurm.site import ProgramHere, SlurmSite

_SIGNALLED = 128
_MOST_TOLD = 1000
_END_OF_FILE = b"\x04"
_STEP = (
    "srun",
    "--overlap",
    "--nodes=1",
    "--ntasks=1",
    "--relative=0",
    "--mpi=none",
    "--unbuffered",
    "--quiet",
)


async def start_step(
    site: SlurmSite,
    job_id: str,
    request: RunCommand,
    runner: "RunnerBeside | None",
) -> "StepCommand":
    """Start a command as a step of a job; `runner`: what starts it there, None for no
    more than `srun`. ProviderError, OSError.
    """
    number = await _plain_number(site, job_id)
    mark = new_mark()
    words = ["env", f"TERM={request.terminal}"] if request.terminal else []
    words += [*_STEP, f"--jobid={number}", f"--job-name={mark}"]
    words += ["--pty"] if request.terminal else []
    # What the user names is no option of `srun`, which runs some programs here.
    words += ["--"]
    if runner is not None:
        words += [*runner.words, mark]
    words += request.command
    here = site.program(words, terminal=bool(request.terminal))
    command = StepCommand(site, number, mark, runner)
    if request.terminal:
        await command.start_on_terminal(here, request)
    else:
        await command.start(here)
    return command


async def _plain_number(site: SlurmSite, job_id: str) -> str:
    """The id that `srun` takes; it takes none of an array's jobs. ProviderError."""
    if "_" not in job_id:
        return job_id
    answer = await site.run(("squeue", "-h", "-j", job_id, "-o", "%A"))
    number = answer.out.strip()
    if answer.code or not number.isdigit():
        message = f"squeue: {answer.err.strip() or f'{job_id} is not there'}"
        raise ProviderError(message, "slurm", "NOT_RUNNING")
    return number


@dataclass(frozen=True, slots=True)
class RunnerBeside:
    """The runner of a job, which starts a command beside its program. It tells the exit
    code in a file: `srun` would add a line of its own to the output of a command that
    fails.
    """

    python: str
    folder: AttemptFolder

    @property
    def words(self) -> list[str]:
        """The words before the mark and the command."""
        folder = self.folder
        return [self.python, str(folder.runner), str(folder.path), "--beside"]

    async def code(self, site: SlurmSite, mark: str) -> int | None:
        """The exit code of a command that has ended by itself."""
        path = self.folder.path / f"beside-{mark}.json"
        told = read_json(await site.read(path, limit=_MOST_TOLD))
        code = told.get("code")
        return code if isinstance(code, int) else None


class StepCommand:
    """A step of a job. See JobCommand."""

    def __init__(
        self, site: SlurmSite, number: str, mark: str, runner: RunnerBeside | None
    ) -> None:
        self._site = site
        self._runner = runner
        self._number = number
        self._mark = mark
        self._process: Process | None = None
        self._terminal: Descriptor | None = None

    async def start(self, here: ProgramHere) -> None:
        """Start it with pipes; OSError."""
        process = await asyncio.create_subprocess_exec(
            *here.words,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=dict(here.environment),
            start_new_session=True,
        )
        self._process = process

    async def start_on_terminal(self, here: ProgramHere, request: RunCommand) -> None:
        """Start it on a terminal, which `srun` joins with that of the step; OSError."""
        master, slave = os.openpty()
        self._terminal = Descriptor(master)
        try:
            _set_size(master, request.rows, request.columns)
            self._process = await asyncio.create_subprocess_exec(
                *here.words,
                stdin=slave,
                stdout=slave,
                stderr=slave,
                env=dict(here.environment),
                start_new_session=True,
            )
        except OSError:
            self._terminal.close()
            raise
        finally:
            os.close(slave)

    async def read_output(self, size: int) -> bytes:
        """See JobCommand."""
        if self._terminal:
            return await self._terminal.read(size)
        assert self._process
        assert self._process.stdout
        return await self._process.stdout.read(size)

    async def read_errors(self, size: int) -> bytes:
        """See JobCommand."""
        if self._terminal:
            return b""
        assert self._process
        assert self._process.stderr
        return await self._process.stderr.read(size)

    async def write(self, data: bytes) -> None:
        """See JobCommand."""
        if self._terminal:
            await self._terminal.write(data)
            return
        assert self._process
        assert self._process.stdin
        self._process.stdin.write(data)
        await self._process.stdin.drain()

    async def end_input(self) -> None:
        """See JobCommand."""
        assert self._process
        if self._terminal:
            await self.write(_END_OF_FILE)
        elif self._process.stdin:
            self._process.stdin.close()

    async def resize(self, rows: int, columns: int) -> None:
        """See JobCommand. `srun` and ssh look again when they are told."""
        process = self._process
        if self._terminal and process and process.returncode is None:
            _set_size(self._terminal.number, rows, columns)
            process.send_signal(signal.SIGWINCH)

    async def exit_code(self) -> int:
        """See JobCommand."""
        assert self._process
        code = await self._process.wait()
        if self._terminal:
            self._terminal.finish()
        told = await self._runner.code(self._site, self._mark) if self._runner else None
        if told is not None:
            return told
        return code if code >= 0 else _SIGNALLED - code

    async def end(self) -> None:
        """Cancel the step: Slurm sends TERM, and KILL after its `KillWait`."""
        listed = await self._site.run(
            ("squeue", "-h", "--steps", "-j", self._number, "-o", "%i %j")
        )
        for line in listed.out.splitlines():
            step, _, name = line.partition(" ")
            if name.strip() == self._mark:
                await self._site.run(("scancel", step))
        await self.close()

    async def close(self) -> None:
        """See JobCommand."""
        if self._process and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.terminate()
        if self._terminal:
            self._terminal.close()


def _set_size(terminal: int, rows: int, columns: int) -> None:
    size = struct.pack("HHHH", rows, columns, 0, 0)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)
