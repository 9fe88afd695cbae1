"""Copies files between two hosts with rsync, which both need.

rsync sends only differences. A workspace is copied to the job's host before the job,
and what the job has changed is copied back after it. Modification times are only
compared where both sides have changed a file: the clocks of two hosts may differ.
"""

import asyncio
import json
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuyard.config.private_environment import public_environment
from gpuyard.domain.errors import ProviderError
from gpuyard.storage.place import in_background
from gpuyard.storage.workspaces import files_of

# Exit codes of rsync, and of ssh (255), for a connection that broke or timed out.
_CONNECTION_LOST = {10, 12, 30, 35, 255}
# Files were removed while rsync read them, which is no error.
_VANISHED = 24
_NOT_FOUND = 127
_TIMEOUT_S = 60
# Times are compared by the nanosecond: a job may change a file within the second in
# which it was copied.
_OPTIONS = ("-rlpt", "-s", "--modify-window=-1", f"--timeout={_TIMEOUT_S}")
_MAX_COPIES = 4
INSIDE_ONLY = ("--safe-links", "--chmod=u-s,g-s")
"""For what a job wrote: no link that leads out of the copied folder comes along, and no
program that runs as its owner.
"""

FileStamp = tuple[int, int]
"""The size and modification time (ns) of a file."""


@dataclass(frozen=True, slots=True)
class RsyncHost:
    """The other host: `host` as rsync writes it, and the `ssh` command to reach it.

    Both are empty for this host.
    """

    provider: str
    host: str = ""
    ssh: Sequence[str] = ()

    def remote_path(self, path: Path | str) -> str:
        """A path on that host, as rsync writes it."""
        return f"{self.host}:{path}" if self.host else str(path)

    async def copy(
        self, source: str, target: str, *options: str, stdin: bytes = b""
    ) -> None:
        """Copy a file, or the contents of a folder where `source` ends in `/`.

        Nothing is removed. ProviderError with the code NOT_CONNECTED, NOT_INSTALLED or
        SPOOL.
        """
        shell = ("-e", shlex.join(self.ssh)) if self.ssh else ()
        command = ("rsync", *_OPTIONS, *shell, *options, "--", source, target)
        code, error = await _run(command, stdin, self.provider)
        if code == _NOT_FOUND:
            message = f"rsync is not on {self.host}. Install it there."
            raise ProviderError(message, self.provider, "NOT_INSTALLED")
        if code not in (0, _VANISHED):
            message = f"rsync to {target}: {error or 'failed'}"
            error_code = "NOT_CONNECTED" if code in _CONNECTION_LOST else "SPOOL"
            raise ProviderError(message, self.provider, error_code)


async def _run(command: Sequence[str], stdin: bytes, provider: str) -> tuple[int, str]:
    """The exit code, and the first line of the error output."""
    # No pipe: uvloop raises RuntimeError if rsync has ended before it is written to.
    with os.fdopen(os.memfd_create("stdin"), "w+b") as given:
        given.write(stdin)
        given.seek(0)
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=given,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                env=public_environment(),
            )
        except FileNotFoundError:
            message = "rsync is not on this host, and files have to travel. Install it."
            raise ProviderError(message, provider, "NOT_INSTALLED") from None
    try:
        _, err = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        raise
    lines = err.decode(errors="replace").strip().splitlines()
    return process.returncode or 0, lines[0] if lines else ""


class WorkspaceSync:
    """Copies workspaces to the hosts of attempts and back.

    `notes` is a folder with a file for each attempt: which folders were copied, and the
    stamps of the files then.
    """

    def __init__(self, rsync: RsyncHost, notes: Path) -> None:
        self._rsync = rsync
        self._notes = notes
        self._locks: dict[Path, asyncio.Lock] = {}
        self._slots = asyncio.Semaphore(_MAX_COPIES)

    async def send(self, attempt_id: str, local: Path, remote: Path) -> None:
        """Copy the workspace `local` to the existing folder `remote`.

        Files that are newer there are kept.
        """
        async with self._locks.setdefault(remote, asyncio.Lock()), self._slots:
            await in_background(local.mkdir, parents=True, exist_ok=True, mode=0o700)
            target = self._rsync.remote_path(_contents(remote))
            await self._rsync.copy(_contents(local), target, "--update")
            note = {
                "here": str(local),
                "there": str(remote),
                "sent": await in_background(_stamps, local),
            }
            await in_background(_write, self._note(attempt_id), json.dumps(note))

    async def bring_back(self, attempt_id: str) -> None:
        """Copy the job's changes back.

        Where this host has changed a file meanwhile, the newer one is kept.
        """
        text = await in_background(_read, self._note(attempt_id))
        if text is None:
            return  # it has no workspace, or ran in the workspace itself
        note = json.loads(text)
        local = Path(note["here"])
        remote = Path(note["there"])
        async with self._locks.setdefault(remote, asyncio.Lock()), self._slots:
            sent: Mapping[str, Sequence[int]] = note["sent"]
            current = await in_background(_stamps, local)
            changed_here = [
                name for name, stamp in current.items() if list(stamp) != sent.get(name)
            ]
            source = self._rsync.remote_path(_contents(remote))
            target = _contents(local)
            if changed_here:
                only_these = ("--from0", "--files-from=-", "--ignore-missing-args")
                await self._rsync.copy(
                    source,
                    target,
                    "--update",
                    *INSIDE_ONLY,
                    *only_these,
                    stdin=_list(changed_here),
                )
            patterns = _list(_pattern(name) for name in changed_here)
            all_others = ("--from0", "--exclude-from=-")
            await self._rsync.copy(
                source, target, *INSIDE_ONLY, *all_others, stdin=patterns
            )

    async def forget(self, attempt_id: str) -> None:
        """Remove the attempt's note."""
        await in_background(self._note(attempt_id).unlink, missing_ok=True)

    def _note(self, attempt_id: str) -> Path:
        return self._notes / f"{attempt_id}.workspace"


def _list(names: Iterable[str]) -> bytes:
    return b"".join(os.fsencode(name) + b"\0" for name in names)


def _pattern(name: str) -> str:
    """An rsync pattern that matches only this file.

    rsync reads a backslash as an escape only in patterns with wildcards.
    """
    if re.search(r"[*?\[]", name):
        name = re.sub(r"([*?\[\\])", r"\\\1", name)
    return f"/{name}"


def _contents(folder: Path) -> str:
    """The contents of a folder, as rsync writes them."""
    return f"{folder}/"


def _stamps(folder: Path) -> dict[str, FileStamp]:
    return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in files_of(folder)}


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.write_text(text, errors="surrogateescape")


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="surrogateescape")
    except FileNotFoundError:
        return None
