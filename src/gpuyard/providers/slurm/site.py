"""Where Slurm's commands run and its shared files lie: this host, or a login node over ssh.

Over ssh one connection is kept open for all (a control master of the system's own `ssh`), so its configuration, keys
and jump hosts hold here too.
"""

import asyncio
import io
import os
import shlex
import shutil
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gpuyard.domain.errors import ProviderError
from gpuyard.providers.carrying import Way

_NONE: Mapping[Path, str] = {}
_PASSED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_", "TZ", "LD_LIBRARY_PATH", "KRB5", "XDG_RUNTIME", "SLURM_")
# Of ssh itself: no connection.
_SSH_FAILED = 255


@dataclass(frozen=True, slots=True)
class Answer:
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str


class Site(Protocol):
    """A host that can submit. Errors of the way there are ProviderErrors with the codes NOT_CONNECTED and TIMEOUT.

    `way`: how large files and folders get there.
    """

    way: Way

    async def run(self, command: Sequence[str], stdin: bytes = b"") -> Answer:
        """Run a command to its end."""
        ...

    async def read(self, path: Path, offset: int = 0, limit: int = -1) -> bytes | None:
        """A file from `offset` on, at most `limit` bytes; None when there is none."""
        ...

    async def read_all(self, paths: Sequence[Path]) -> Mapping[Path, bytes]:
        """Those of these small files that are there."""
        ...

    async def write(self, files: Mapping[Path, bytes], links: Mapping[Path, str] = _NONE) -> None:
        """Make these files, private to their owner, the folders they are in, and then links to others."""
        ...

    async def make(self, folder: Path) -> None:
        """Make a folder, private to its owner; nothing changes when it is there."""
        ...

    async def remove(self, folder: Path) -> None:
        """Remove a folder with all that is in it; nothing changes when it is gone."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


async def call(
    command: Sequence[str], stdin: bytes, environment: Mapping[str, str], timeout_s: float
) -> tuple[int, bytes, bytes]:
    """Run a program of this host; ProviderError when it is not there or does not come back."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE if stdin else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=dict(environment),
        )  # fmt: skip
    except FileNotFoundError:
        message = f"The program {command[0]} is not on this host. Install it, or set `host` to a login node."
        raise ProviderError(message, "slurm", "NOT_INSTALLED") from None
    try:
        out, err = await asyncio.wait_for(process.communicate(stdin or None), timeout_s)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise ProviderError(f"{command[0]} did not answer within {timeout_s:g} s.", "slurm", "TIMEOUT") from None
    except asyncio.CancelledError:
        process.kill()
        raise
    return process.returncode or 0, out, err


class LocalSite:
    """This very host: a login node, or a workstation that can submit."""

    def __init__(self, environment: Mapping[str, str], timeout_s: float, concurrency: int) -> None:
        self._environment = environment
        self._timeout_s = timeout_s
        self._turn = asyncio.Semaphore(concurrency)
        self.way = Way("slurm")

    async def run(self, command: Sequence[str], stdin: bytes = b"") -> Answer:
        """See Site. Slurm gives a job the environment of its `sbatch`: ours holds what is no job's business."""
        given = {name: value for name, value in os.environ.items() if name.startswith(_PASSED) and name != "SLURM_JWT"}
        async with self._turn:
            code, out, err = await call(command, stdin, {**given, **self._environment}, self._timeout_s)
        return Answer(code, out.decode(errors="replace"), err.decode(errors="replace"))

    async def read(self, path: Path, offset: int = 0, limit: int = -1) -> bytes | None:
        """See Site."""
        return await asyncio.to_thread(_read, path, offset, limit)

    async def read_all(self, paths: Sequence[Path]) -> Mapping[Path, bytes]:
        """See Site."""
        found = await asyncio.to_thread(lambda: [(path, _read(path, 0, -1)) for path in paths])
        return {path: data for path, data in found if data is not None}

    async def write(self, files: Mapping[Path, bytes], links: Mapping[Path, str] = _NONE) -> None:
        """See Site."""
        await asyncio.to_thread(_write, files, links)

    async def make(self, folder: Path) -> None:
        """See Site."""
        await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True, mode=0o700)

    async def remove(self, folder: Path) -> None:
        """See Site."""
        await self.run(("rm", "-rf", "--", str(folder)))

    async def close(self) -> None:
        """See Site."""
        return


class SshSite:
    """A login node. `host` is what one gives to `ssh`."""

    def __init__(
        self, host: str, options: Sequence[str], environment: Mapping[str, str], timeout_s: float, concurrency: int
    ) -> None:  # fmt: skip
        self._host = host
        self._turn = asyncio.Semaphore(concurrency)
        self._timeout_s = timeout_s
        self._environment = environment
        # Not in gpuyard's home: a socket's path may have some hundred letters, and ssh adds sixty of its own.
        self._control = tempfile.mkdtemp(prefix="gpuyard-ssh-")
        self._options = (
            *options, "-o", "BatchMode=yes", "-o", "ControlMaster=auto", "-o", "ControlPersist=120",
            "-o", f"ControlPath={self._control}/%C", "-o", "ServerAliveInterval=15",
        )  # fmt: skip
        user, at, name = host.rpartition("@")
        self.way = Way("slurm", f"{user}{at}[{name}]" if ":" in name else host, ("ssh", *self._options))

    async def _ssh(self, command: Sequence[str], stdin: bytes = b"") -> tuple[int, bytes, bytes]:
        names = [f"{name}={value}" for name, value in self._environment.items()]
        words = ("ssh", *self._options, self._host, "--", shlex.join(["env", *names, *command]))
        async with self._turn:
            code, out, err = await call(words, stdin, os.environ, self._timeout_s)
        if code == _SSH_FAILED:
            said = err.decode(errors="replace").strip().splitlines()
            raise ProviderError(f"ssh to {self._host}: {said[-1] if said else 'failed'}", "slurm", "NOT_CONNECTED")
        return code, out, err

    async def run(self, command: Sequence[str], stdin: bytes = b"") -> Answer:
        """See Site."""
        code, out, err = await self._ssh(command, stdin)
        return Answer(code, out.decode(errors="replace"), err.decode(errors="replace"))

    async def read(self, path: Path, offset: int = 0, limit: int = -1) -> bytes | None:
        """See Site."""
        head = f" | head -c {limit}" if limit >= 0 else ""
        script = f'[ -f "$1" ] || exit 3; tail -c "+$2" -- "$1"{head}'
        code, out, _ = await self._ssh(("sh", "-c", script, "sh", str(path), str(offset + 1)))
        return out if code == 0 else None

    async def read_all(self, paths: Sequence[Path]) -> Mapping[Path, bytes]:
        """See Site. One tar for all, so that it is one question however many there are."""
        script = "tar --ignore-failed-read -P -cf - --null -T - 2>/dev/null || true"
        _, out, _ = await self._ssh(("sh", "-c", script), b"".join(os.fsencode(path) + b"\0" for path in paths))
        with tarfile.open(fileobj=io.BytesIO(out)) as archive:
            found = [(Path(item.name), archive.extractfile(item)) for item in archive]
            return {path: file.read() for path, file in found if file}

    async def write(self, files: Mapping[Path, bytes], links: Mapping[Path, str] = _NONE) -> None:
        """See Site."""
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w") as archive:
            for path, content in files.items():
                item = tarfile.TarInfo(str(path))
                item.size, item.mode = len(content), 0o600
                archive.addfile(item, io.BytesIO(content))
            for path, target in links.items():
                item = tarfile.TarInfo(str(path))
                item.type, item.linkname = tarfile.SYMTYPE, target
                archive.addfile(item)
        code, _, err = await self._ssh(("sh", "-c", "umask 077; tar -P -xf -"), data.getvalue())
        if code:
            raise ProviderError(f"{self._host}: {err.decode(errors='replace').strip()}", "slurm", "SPOOL")

    async def make(self, folder: Path) -> None:
        """See Site."""
        await self._ssh(("sh", "-c", 'umask 077; mkdir -p -- "$1"', "sh", str(folder)))

    async def remove(self, folder: Path) -> None:
        """See Site."""
        await self._ssh(("rm", "-rf", "--", str(folder)))

    async def close(self) -> None:
        """See Site."""
        with suppress(ProviderError):
            await call(("ssh", *self._options, "-O", "exit", self._host), b"", os.environ, self._timeout_s)
        shutil.rmtree(self._control, ignore_errors=True)


def _read(path: Path, offset: int, limit: int) -> bytes | None:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(limit)
    except FileNotFoundError:
        return None


def _write(files: Mapping[Path, bytes], links: Mapping[Path, str]) -> None:
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        Path(temporary).replace(path)
    for path, target in links.items():
        path.symlink_to(target)
