"""A login node as the host of Slurm's commands, reached with the system's `ssh`.

So ssh's own configuration, keys and jump hosts apply. One connection (a control master)
serves all calls.
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
from pathlib import Path

from gpuyard.config.private_environment import public_environment
from gpuyard.domain.errors import ProviderError
from gpuyard.providers.rsync import RsyncHost
from gpuyard.providers.runner_files import MAX_BYTES, Content
from gpuyard.providers.slurm.site import NO_LINKS, CommandOutput, ProgramHere, call
from gpuyard.storage.untrusted import UntrustedFileError

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
        self, files: Mapping[Path, bytes], links: Mapping[Path, str] = NO_LINKS
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
