"""The host that runs Slurm's commands and sees its shared files: this one, or a login
node (`site_over_ssh`).
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from gpuyard.domain.errors import ProviderError
from gpuyard.providers.rsync import RsyncHost
from gpuyard.providers.runner_files import MAX_BYTES, Content
from gpuyard.storage.untrusted import (
    UntrustedFileError,
    folder_beneath,
    open_beneath,
    read_beneath,
    remove_in,
    write_beneath,
)

_PRIVATE = 0o700
NO_LINKS: Mapping[Path, str] = {}
# The variables of this host that Slurm's commands get, by the beginning of their names.
_PASSED_PREFIXES = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "LC_",
    "TZ",
    "LD_LIBRARY_PATH",
    "KRB5",
    "XDG_RUNTIME",
    "SLURM_",
)


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str


@dataclass(frozen=True, slots=True)
class ProgramHere:
    """A program to start on this host: its words and its environment."""

    words: Sequence[str]
    environment: Mapping[str, str]


class SlurmSite(Protocol):
    """A host that can submit.

    When it cannot be reached, calls raise ProviderError with the code NOT_CONNECTED or
    TIMEOUT. `rsync` copies large files and folders there and back.

    Jobs can write in the spool. So below it no link is followed on this host, whose
    user may read more than the jobs can.
    """

    rsync: RsyncHost

    async def run(self, command: Sequence[str], stdin: bytes = b"") -> CommandOutput:
        """Run a command to its end."""
        ...

    async def output(self, command: Sequence[str]) -> tuple[int, bytes, str]:
        """As `run`, without input: the exit code, the output as it is, and the error
        output.
        """
        ...

    def program(self, command: Sequence[str], *, terminal: bool) -> ProgramHere:
        """What to start on this host so that a command runs there, with the input and
        output of this program; with `terminal`, on the terminal that this one has.
        """
        ...

    async def read(
        self, path: Path, offset: int = 0, limit: int = MAX_BYTES
    ) -> bytes | None:
        """A file from `offset` on, at most `limit` bytes; None when it is missing, or
        no regular file.
        """
        ...

    async def size(self, path: Path) -> int:
        """The bytes of a file; 0 when it cannot be read."""
        ...

    async def read_all(
        self, paths: Sequence[Path], limit: int = MAX_BYTES
    ) -> Mapping[Path, Content]:
        """The contents of small files in the spool; files that do not exist are left
        out. A link, or a file of more than `limit` bytes, is an error in the mapping:
        it must not keep others from being read.
        """
        ...

    async def write(
        self, files: Mapping[Path, bytes], links: Mapping[Path, str] = NO_LINKS
    ) -> None:
        """Write files and their folders, private to their owner, then symbolic links.

        `links` has the target of each link.
        """
        ...

    async def make_folder(self, folder: Path) -> None:
        """Make a folder, private to its owner, unless it exists."""
        ...

    async def remove(self, folder: Path) -> None:
        """Remove a folder with its contents, if it exists."""
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...


async def call(
    command: Sequence[str],
    stdin: bytes,
    environment: Mapping[str, str],
    timeout_s: float,
) -> tuple[int, bytes, bytes]:
    """Run a program on this host; returns its exit code, output and error output.

    ProviderError when it is not installed or takes longer than `timeout_s`.
    """
    # A file, not a pipe: a program may end before it has read its input.
    with os.fdopen(os.memfd_create("stdin"), "w+b") as source:
        source.write(stdin)
        source.seek(0)
        process = await _start(command, source, environment)
    try:
        out, err = await asyncio.wait_for(process.communicate(), timeout_s)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise ProviderError(
            f"{command[0]} did not answer within {timeout_s:g} s.", "slurm", "TIMEOUT"
        ) from None
    except asyncio.CancelledError:
        process.kill()
        raise
    return process.returncode or 0, out, err


async def _start(
    command: Sequence[str], stdin: IO[bytes], environment: Mapping[str, str]
) -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            *command,
            stdin=stdin,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(environment),
        )
    except FileNotFoundError:
        message = (
            f"The program {command[0]} is not on this host. Install it, or set `host`"
            " to a login node."
        )
        raise ProviderError(message, "slurm", "NOT_INSTALLED") from None


class LocalSlurmSite:
    """This host: a login node, or a workstation that can submit."""

    def __init__(
        self,
        environment: Mapping[str, str],
        timeout_s: float,
        concurrency: int,
        spool: Path,
    ) -> None:
        self._spool = spool
        self._environment = environment
        self._timeout_s = timeout_s
        self._slots = asyncio.Semaphore(concurrency)
        self.rsync = RsyncHost("slurm")

    async def run(self, command: Sequence[str], stdin: bytes = b"") -> CommandOutput:
        """See SlurmSite.

        Slurm gives a job the environment of its `sbatch`, and some of our variables
        must not reach jobs.
        """
        code, out, err = await self._call(command, stdin)
        return CommandOutput(
            code, out.decode(errors="replace"), err.decode(errors="replace")
        )

    async def output(self, command: Sequence[str]) -> tuple[int, bytes, str]:
        """See SlurmSite."""
        code, out, err = await self._call(command, b"")
        return code, out, err.decode(errors="replace")

    async def _call(
        self, command: Sequence[str], stdin: bytes
    ) -> tuple[int, bytes, bytes]:
        here = self.program(command, terminal=False)
        async with self._slots:
            return await call(here.words, stdin, here.environment, self._timeout_s)

    def program(self, command: Sequence[str], *, terminal: bool) -> ProgramHere:
        """See SlurmSite."""
        environment = {
            name: value
            for name, value in os.environ.items()
            if name.startswith(_PASSED_PREFIXES) and name != "SLURM_JWT"
        }
        environment.update(self._environment)
        return ProgramHere(command, environment)

    async def read(
        self, path: Path, offset: int = 0, limit: int = MAX_BYTES
    ) -> bytes | None:
        """See SlurmSite."""
        return await asyncio.to_thread(self._read, path, offset, limit)

    def _read(self, path: Path, offset: int, limit: int) -> bytes | None:
        try:
            with open_beneath(*self._place(path)) as file:
                file.seek(offset)
                return file.read(limit)
        except OSError:
            return None

    def _place(self, path: Path) -> tuple[Path, Path]:
        """The folder below which no link is followed, and the rest of the path.

        Outside of the spool that is its own folder: only a batch script has its output
        there, where its owner has told Slurm to put it.
        """
        if path.is_relative_to(self._spool):
            return self._spool, path.relative_to(self._spool)
        return path.parent, Path(path.name)

    async def size(self, path: Path) -> int:
        """See SlurmSite."""
        return await asyncio.to_thread(self._size, path)

    def _size(self, path: Path) -> int:
        try:
            with open_beneath(*self._place(path)) as file:
                return os.fstat(file.fileno()).st_size
        except OSError:
            return 0

    async def read_all(
        self, paths: Sequence[Path], limit: int = MAX_BYTES
    ) -> Mapping[Path, Content]:
        """See SlurmSite."""
        return await asyncio.to_thread(self._read_all, paths, limit)

    def _read_all(self, paths: Sequence[Path], limit: int) -> dict[Path, Content]:
        contents: dict[Path, Content] = {}
        for path in paths:
            try:
                contents[path] = read_beneath(*self._place(path), limit)
            except UntrustedFileError as error:
                contents[path] = error
            except FileNotFoundError:
                continue
            except (PermissionError, NotADirectoryError) as error:
                contents[path] = UntrustedFileError(error.strerror)
        return contents

    async def write(
        self, files: Mapping[Path, bytes], links: Mapping[Path, str] = NO_LINKS
    ) -> None:
        """See SlurmSite."""
        await asyncio.to_thread(self._write, files, links)

    def _write(self, files: Mapping[Path, bytes], links: Mapping[Path, str]) -> None:
        for path, content in files.items():
            write_beneath(*self._place(path), content)
        for path, target in links.items():
            with folder_beneath(*self._steps(path.parent), make=_PRIVATE) as folder:
                os.symlink(target, path.name, dir_fd=folder)

    async def make_folder(self, folder: Path) -> None:
        """See SlurmSite."""
        await asyncio.to_thread(self._make_folder, folder)

    def _make_folder(self, path: Path) -> None:
        with folder_beneath(*self._steps(path), make=_PRIVATE):
            return

    def _steps(self, folder: Path) -> tuple[Path, Sequence[str]]:
        """The spool, and the way from there to a folder in it."""
        return self._spool, folder.relative_to(self._spool).parts

    async def remove(self, folder: Path) -> None:
        """See SlurmSite."""
        await asyncio.to_thread(self._remove, folder)

    def _remove(self, path: Path) -> None:
        # A link on the way is a job's: what lies behind it is not ours to remove.
        with suppress(OSError), folder_beneath(*self._steps(path.parent)) as folder:
            remove_in(folder, path.name)

    async def close(self) -> None:
        """See SlurmSite."""
        return
