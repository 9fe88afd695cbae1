"""The host that runs Slurm's commands and sees its shared files.

It is this host, or a login node reached with the system's `ssh`. So ssh's own
configuration, keys and jump hosts apply. One connection (a control master) serves all
calls.
"""

import asyncio
import io
import os
import shlex
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from gpuyard.config.private_environment import public_environment
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
_NO_LINKS: Mapping[Path, str] = {}
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
# Goes on only where "$2" is a regular file below the folder "$1", and no link.
_REGULAR = (
    'cd -P -- "$1" 2>/dev/null && [ -f "$2" ] &&'
    ' [ "$(readlink -f -- "$2")" = "$PWD/$2" ] || exit 3'
)
# Packs the files below "$1" that standard input names, but tells on standard error
# the names of what is no regular file of at most "$2" bytes. A file may grow meanwhile,
# so no more than "$3" bytes come back.
_READ_ALL = r"""cd -P -- "$1" || exit 0
xargs -0 sh -c 'exec find "$@" -prune \( -type f ! -size "+${0}c" -print0 \) \
    -o -exec sh -c "echo \"\$0\" >&3" {} \;' "$2" 3>&2 2>/dev/null |
tar --no-recursion --ignore-failed-read -cf - --null -T - 2>/dev/null |
head -c "$3" """
_TAR_OVERHEAD = 4096
# ssh's own exit code when it has no connection.
_SSH_FAILED = 255


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
        self, files: Mapping[Path, bytes], links: Mapping[Path, str] = _NO_LINKS
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
        self, files: Mapping[Path, bytes], links: Mapping[Path, str] = _NO_LINKS
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


class SshSlurmSite:
    """A login node. `host` is as `ssh` takes it."""

    def __init__(
        self,
        host: str,
        options: Sequence[str],
        environment: Mapping[str, str],
        timeout_s: float,
        concurrency: int,
        spool: Path,
    ) -> None:
        self._spool = spool
        self._host = host
        self._slots = asyncio.Semaphore(concurrency)
        self._timeout_s = timeout_s
        self._environment = environment
        # Not in gpuyard's home: a socket's path has at most about 100 characters, and
        # ssh adds 60.
        self._control = tempfile.mkdtemp(prefix="gpuyard-ssh-")
        self._options = (
            *options,
            "-o",
            "BatchMode=yes",
            "-o",
            "ControlMaster=auto",
            "-o",
            "ControlPersist=120",
            "-o",
            f"ControlPath={self._control}/%C",
            "-o",
            "ServerAliveInterval=15",
        )
        user, at_sign, name = host.rpartition("@")
        # rsync takes IPv6 addresses in brackets.
        rsync_host = f"{user}{at_sign}[{name}]" if ":" in name else host
        self.rsync = RsyncHost("slurm", rsync_host, ("ssh", *self._options))

    async def _ssh(
        self, command: Sequence[str], stdin: bytes = b""
    ) -> tuple[int, bytes, bytes]:
        here = self.program(command, terminal=False)
        async with self._slots:
            code, out, err = await call(
                here.words, stdin, here.environment, self._timeout_s
            )
        if code == _SSH_FAILED:
            lines = err.decode(errors="replace").strip().splitlines()
            why = lines[-1] if lines else "failed"
            message = f"ssh to {self._host}: {why}"
            raise ProviderError(message, "slurm", "NOT_CONNECTED")
        return code, out, err

    def program(self, command: Sequence[str], *, terminal: bool) -> ProgramHere:
        """See SlurmSite."""
        variables = [f"{name}={value}" for name, value in self._environment.items()]
        remote_command = shlex.join(["env", *variables, *command])
        kind = "-tt" if terminal else "-T"
        # What the user types is for the command: `~.` ends no connection of ours.
        options = (*self._options, "-o", "EscapeChar=none")
        words = ("ssh", kind, *options, self._host, "--", remote_command)
        return ProgramHere(words, public_environment())

    async def output(self, command: Sequence[str]) -> tuple[int, bytes, str]:
        """See SlurmSite."""
        code, out, err = await self._ssh(command)
        return code, out, err.decode(errors="replace")

    async def run(self, command: Sequence[str], stdin: bytes = b"") -> CommandOutput:
        """See SlurmSite."""
        code, out, err = await self._ssh(command, stdin)
        return CommandOutput(
            code, out.decode(errors="replace"), err.decode(errors="replace")
        )

    async def read(
        self, path: Path, offset: int = 0, limit: int = MAX_BYTES
    ) -> bytes | None:
        """See SlurmSite."""
        script = f'{_REGULAR}; tail -c "+$3" -- "$2" | head -c "$4"'
        words = (*self._place(path), str(offset + 1), str(limit))
        code, out, _ = await self._ssh(("sh", "-c", script, "sh", *words))
        return out if code == 0 else None

    def _place(self, path: Path) -> tuple[str, str]:
        """The folder below which no link is followed, and the rest of the path."""
        if path.is_relative_to(self._spool):
            return str(self._spool), str(path.relative_to(self._spool))
        return str(path.parent), path.name

    async def size(self, path: Path) -> int:
        """See SlurmSite."""
        script = f'{_REGULAR}; wc -c < "$2"'
        answer = await self.run(("sh", "-c", script, "sh", *self._place(path)))
        return int(answer.out.strip()) if answer.code == 0 else 0

    async def read_all(
        self, paths: Sequence[Path], limit: int = MAX_BYTES
    ) -> Mapping[Path, Content]:
        """See SlurmSite. One tar holds all files, so that one call reads them all."""
        asked = {str(path.relative_to(self._spool)): path for path in paths}
        names = b"".join(os.fsencode(name) + b"\0" for name in asked)
        most = len(asked) * (limit + _TAR_OVERHEAD) + _TAR_OVERHEAD
        words = (str(self._spool), str(limit), str(most))
        command = ("sh", "-c", _READ_ALL, "sh", *words)
        _, out, err = await self._ssh(command, names)
        contents: dict[Path, Content] = {}
        for name in err.decode(errors="replace").splitlines():
            if name in asked:
                fault = f"{name} is no regular file of at most {limit:,} bytes"
                contents[asked[name]] = UntrustedFileError(fault)
        for name, content in _unpacked(out, limit):
            if name in asked:
                contents[asked[name]] = content
        return contents

    async def write(
        self, files: Mapping[Path, bytes], links: Mapping[Path, str] = _NO_LINKS
    ) -> None:
        """See SlurmSite."""
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w") as archive:
            for path, content in files.items():
                item = tarfile.TarInfo(str(path))
                item.size = len(content)
                item.mode = 0o600
                archive.addfile(item, io.BytesIO(content))
            for path, target in links.items():
                item = tarfile.TarInfo(str(path))
                item.type = tarfile.SYMTYPE
                item.linkname = target
                archive.addfile(item)
        unpack = ("sh", "-c", "umask 077; tar -P -xf -")
        code, _, err = await self._ssh(unpack, data.getvalue())
        if code:
            message = f"{self._host}: {err.decode(errors='replace').strip()}"
            raise ProviderError(message, "slurm", "SPOOL")

    async def make_folder(self, folder: Path) -> None:
        """See SlurmSite."""
        await self._ssh(("sh", "-c", 'umask 077; mkdir -p -- "$1"', "sh", str(folder)))

    async def remove(self, folder: Path) -> None:
        """See SlurmSite."""
        await self._ssh(("rm", "-rf", "--", str(folder)))

    async def close(self) -> None:
        """See SlurmSite."""
        with suppress(ProviderError):
            await call(
                ("ssh", *self._options, "-O", "exit", self._host),
                b"",
                public_environment(),
                self._timeout_s,
            )
        shutil.rmtree(self._control, ignore_errors=True)


def _unpacked(archive: bytes, limit: int) -> Iterator[tuple[str, bytes]]:
    """The regular files in an archive, as far as it is one."""
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            for item in files:
                file = files.extractfile(item) if item.isreg() else None
                if file and item.size <= limit:
                    yield item.name, file.read()
    except (tarfile.TarError, ValueError):
        return  # it was cut off, or there is none
