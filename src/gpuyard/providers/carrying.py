"""Bringing files from one place to another with rsync: only what differs travels, and both ends need it.

A workspace goes along as it is here, and what a job has changed there comes back. Which of two files is the newer one
is asked only where both sides have changed it since: clocks of two places may differ.
"""

import asyncio
import json
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuyard.domain.errors import ProviderError
from gpuyard.storage.place import in_background
from gpuyard.storage.workspaces import files_of

# rsync's own codes for a way that broke or timed out, and ssh's; files that were removed while it looked are no fault.
_LOST, _VANISHED, _NOT_FOUND = {10, 12, 30, 35, 255}, 24, 127
_SILENT_S = 60
# Files are told apart by the nanosecond: a job may change one within the second in which it was brought.
_OPTIONS = ("-rlpt", "-s", "--modify-window=-1", f"--timeout={_SILENT_S}")
_AT_ONCE = 4

Look = tuple[int, int]
"""Size and time of last change (ns) of a file."""


@dataclass(frozen=True, slots=True)
class Way:
    """How to get to the other place: `host` as rsync writes it, and the command `ssh`; empty for this very host."""

    provider: str
    host: str = ""
    ssh: Sequence[str] = ()

    def there(self, path: Path | str) -> str:
        """A path of that place."""
        return f"{self.host}:{path}" if self.host else str(path)

    async def bring(self, source: str, target: str, *options: str, stdin: bytes = b"") -> None:
        """Bring a file, or all that a folder holds where `source` ends in `/`. Nothing is removed.

        ProviderError with the codes NOT_CONNECTED, NOT_INSTALLED or SPOOL.
        """
        shell = ("-e", shlex.join(self.ssh)) if self.ssh else ()
        code, said = await _run(("rsync", *_OPTIONS, *shell, *options, "--", source, target), stdin, self.provider)
        if code == _NOT_FOUND:
            raise ProviderError(f"rsync is not on {self.host}. Install it there.", self.provider, "NOT_INSTALLED")
        if code not in (0, _VANISHED):
            message = f"rsync to {target}: {said or 'failed'}"
            raise ProviderError(message, self.provider, "NOT_CONNECTED" if code in _LOST else "SPOOL")


async def _run(command: Sequence[str], stdin: bytes, provider: str) -> tuple[int, str]:
    """How it ended, and the first line of what it said against that."""
    pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    try:
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=nothing, stderr=pipe)
    except FileNotFoundError:
        message = "rsync is not on this host, and files have to travel. Install it."
        raise ProviderError(message, provider, "NOT_INSTALLED") from None
    try:
        _, err = await process.communicate(stdin)
    except asyncio.CancelledError:
        process.kill()
        raise
    said = err.decode(errors="replace").strip().splitlines()
    return process.returncode or 0, said[0] if said else ""


class Workspaces:
    """Workspaces that go along with attempts and come back. What each attempt took along is noted in `notes`."""

    def __init__(self, way: Way, notes: Path) -> None:
        self._way, self._notes = way, notes
        self._turns: dict[Path, asyncio.Lock] = {}
        self._at_once = asyncio.Semaphore(_AT_ONCE)

    async def send(self, attempt_id: str, here: Path, there: Path) -> None:
        """Bring the workspace `here` to the folder `there`, which is there; what is newer there stays."""
        async with self._turns.setdefault(there, asyncio.Lock()), self._at_once:
            await in_background(here.mkdir, parents=True, exist_ok=True, mode=0o700)
            await self._way.bring(_inside(here), self._way.there(_inside(there)), "--update")
            note = {"here": str(here), "there": str(there), "sent": await in_background(_looks, here)}
            await in_background(_write, self._note(attempt_id), json.dumps(note))

    async def bring_back(self, attempt_id: str) -> None:
        """Bring here what has changed there. Of what has changed here meanwhile, too, the newer one stays."""
        text = await in_background(_read, self._note(attempt_id))
        if text is None:
            return  # it uses none, or the workspace itself
        note = json.loads(text)
        here, there = Path(note["here"]), Path(note["there"])
        async with self._turns.setdefault(there, asyncio.Lock()), self._at_once:
            before: Mapping[str, Sequence[int]] = note["sent"]
            now = await in_background(_looks, here)
            mine = [name for name, look in now.items() if list(look) != before.get(name)]
            source, target = self._way.there(_inside(there)), _inside(here)
            if mine:
                both = ("--update", "--from0", "--files-from=-", "--ignore-missing-args")
                await self._way.bring(source, target, *both, stdin=_list(mine))
            await self._way.bring(source, target, "--from0", "--exclude-from=-", stdin=_list(map(_pattern, mine)))

    async def forget(self, attempt_id: str) -> None:
        """Nobody asks for what this one took along any more."""
        await in_background(self._note(attempt_id).unlink, missing_ok=True)

    def _note(self, attempt_id: str) -> Path:
        return self._notes / f"{attempt_id}.workspace"


def _list(names: Iterable[str]) -> bytes:
    return b"".join(os.fsencode(name) + b"\0" for name in names)


def _pattern(name: str) -> str:
    """A pattern of rsync's that means this one file. A backslash is one only where there are wildcards."""
    return "/" + (re.sub(r"([*?\[\\])", r"\\\1", name) if re.search(r"[*?\[]", name) else name)


def _inside(folder: Path) -> str:
    """What the folder holds, in rsync's words."""
    return f"{folder}/"


def _looks(folder: Path) -> dict[str, Look]:
    """All files of a folder."""
    return {name: (look.st_size, look.st_mtime_ns) for name, look in files_of(folder)}


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.write_text(text, errors="surrogateescape")


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="surrogateescape")
    except FileNotFoundError:
        return None
