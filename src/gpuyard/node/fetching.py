"""What jobs took along from their submission, on a node: fetched from the server, over
connections of their own, where no server has stored it in the home of this node.
"""

import asyncio
import hashlib
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, cast

from msgspec.structs import replace

from gpuyard.config.accounts import Accounts
from gpuyard.config.paths import Home
from gpuyard.domain import wire, wire_frames
from gpuyard.domain.contents import (
    OF_DATASETS,
    PART_BYTES,
    ContentKind,
    ContentMissingError,
)
from gpuyard.domain.reasons import Reason
from gpuyard.node.code_folder import code_folders
from gpuyard.node.journal import AttemptJournal
from gpuyard.node.launcher import LaunchError
from gpuyard.node.link import ServerAddress, open_link, read_answer
from gpuyard.storage.code_folders import folder_of
from gpuyard.storage.code_store import CodeMissingError
from gpuyard.storage.contents import folder_stores, read_whole
from gpuyard.storage.place import in_background

# A server that has died is replaced within seconds. It is given up when nothing has
# come for so long.
_GIVE_UP_S = 60.0
_PAUSE_S = 0.5
_ANSWER_S = 20.0
# What was fetched and not used for so long goes: it can be fetched again.
_KEPT_S = 7 * 86400.0


def sweep_fetched(home: Path, now: float) -> None:
    """Remove what was fetched and has not been used lately."""
    fetched = folder_stores(Home(home).fetched)
    limit = now - _KEPT_S
    for kind in ContentKind:
        contents = fetched(kind)
        contents.remove(contents.stored_before(limit), limit)


class Fetching:
    """Fetches for the node of a home. `server()` is the address of the server that its
    agent is linked with, None while it is linked with none. `accounts`: those that jobs
    have, if any; then the agent reads no working folders. `is_joined`: this machine has
    joined an instance, so working folders are elsewhere.
    """

    def __init__(
        self,
        home: Path,
        journal: AttemptJournal,
        server: Callable[[], ServerAddress | None],
        accounts: Accounts | None = None,
        *,
        is_joined: bool = False,
    ) -> None:
        self._is_joined = is_joined
        self._home = home
        self._journal = journal
        self._accounts = accounts
        self._own = folder_stores(home)
        self._own_trees = self._own(ContentKind.TREE)
        self._fetched = folder_stores(Home(home).fetched)
        self._server = server
        # Of several jobs with the same, the first one fetches it.
        self._locks = {kind: asyncio.Lock() for kind in ContentKind}

    async def fetch(self, start: wire.StartAttempt, workdir: Path | None) -> None:
        """Fetch the environment of an attempt, and the code that it needs to start in
        `workdir`, if that is given.

        LaunchError when it cannot be fetched, or its code is no longer stored.
        """
        if start.carried_environment:
            await self._have(ContentKind.ENVIRONMENT, [start.carried_environment])
        if start.packages:
            await self._have(ContentKind.ENVIRONMENT, [start.packages])
        if start.code and workdir:
            await self._have_code(start, workdir)

    async def _have_code(self, start: wire.StartAttempt, workdir: Path) -> None:
        # Where a tree is stored, its files are. An earlier agent may have used them.
        private = self._journal.private(start.attempt_id)
        if self._own_trees.has(start.code) or folder_of(private).is_dir():
            return
        await self._have(ContentKind.TREE, [start.code])
        folders = code_folders(self._home)
        # The code of a script does not lie in its working folder.
        # Nor is it on a machine that has joined: what lies there is something else.
        is_script = start.command[0] == wire.SCRIPT
        is_live = not (self._accounts or self._is_joined or is_script)
        live = workdir if is_live else None
        try:
            files = await in_background(folders.files_needed, start.code, live)
        except CodeMissingError as error:
            raise LaunchError(Reason.CODE_MISSING, str(error)) from None
        await self._have(ContentKind.FILE, files)

    async def dataset_part(
        self, kind: ContentKind, project: str, digest: str
    ) -> bytes | None:
        """A part of a dataset of this project; None if it is no longer stored. It stays
        here no longer than that. LaunchError.
        """
        await self._have(kind, [digest], project)
        return await in_background(self._taken, kind, digest)

    def _taken(self, kind: ContentKind, digest: str) -> bytes | None:
        contents = self._fetched(kind)
        try:
            return read_whole(contents, digest)
        except ContentMissingError:
            return None
        finally:
            contents.remove([digest], math.inf)

    async def _have(
        self, kind: ContentKind, digests: Sequence[str], project: str = ""
    ) -> None:
        """Have these, except those that are no longer stored: who needs them says
        so.
        """
        # One is looked for in less time than a thread takes.
        if len(digests) == 1 and not self._lacking(kind, digests):
            return
        async with self._locks[kind]:
            lacking = await in_background(self._lacking, kind, digests)
            for start in range(0, len(lacking), wire.MAX_FETCHED):
                part = lacking[start : start + wire.MAX_FETCHED]
                await self._fetch(wire.FetchContents(kind, part, project))

    def _lacking(self, kind: ContentKind, digests: Sequence[str]) -> list[str]:
        own = self._own(kind)
        wanted = [it for it in dict.fromkeys(digests) if not own.has(it)]
        # They are used: so they are swept later.
        fetched = self._fetched(kind).keep(wanted)
        return [digest for digest in wanted if digest not in fetched]

    async def _fetch(self, request: wire.FetchContents) -> None:
        """Fetch these from whichever server leads; LaunchError."""
        Home(self._home).fetched.mkdir(mode=0o700, exist_ok=True)
        left = list(request.digests)
        until = time.monotonic() + _GIVE_UP_S
        while left:
            before = len(left)
            try:
                await self._ask(request, left)
            except (OSError, EOFError, ValueError) as error:
                if len(left) < before:
                    until = time.monotonic() + _GIVE_UP_S
                if time.monotonic() > until:
                    raise _not_fetched(request.kind, error) from None
                await asyncio.sleep(_PAUSE_S)

    async def _ask(self, request: wire.FetchContents, left: list[str]) -> None:
        """Fetch over one connection; takes from `left` what has come, or is not
        stored. OSError, EOFError or ValueError when the connection ends before.
        """
        address = self._server()
        if address is None:
            raise ConnectionError("no server is connected")
        async with open_link(address) as (reader, writer):
            writer.write(wire_frames.encode(replace(request, digests=left)))
            while left:
                await self._receive(request.kind, left[0], reader)
                left.pop(0)

    async def _receive(
        self, kind: ContentKind, digest: str, reader: asyncio.StreamReader
    ) -> None:
        """Store one content, if the server has it."""
        hashed = hashlib.sha256()
        folder = Home(self._home).fetched
        with tempfile.SpooledTemporaryFile(PART_BYTES, dir=str(folder)) as spooled:
            file = cast("IO[bytes]", spooled)
            part = await read_answer(reader, wire.ContentPart, _ANSWER_S)
            while not part.end:
                if part.missing:
                    return
                hashed.update(part.data)
                await asyncio.to_thread(file.write, part.data)
                part = await read_answer(reader, wire.ContentPart, _ANSWER_S)
            if hashed.hexdigest() != digest:
                raise ValueError(f"the server sent something else than {digest}")
            file.seek(0)
            await in_background(self._fetched(kind).put_file, file)


def _not_fetched(kind: ContentKind, error: Exception) -> LaunchError:
    what = "environment" if kind is ContentKind.ENVIRONMENT else "code"
    if kind in OF_DATASETS:
        return LaunchError(
            Reason.DATASET_UNAVAILABLE,
            f"a dataset could not be fetched from the server: {error}",
        )
    if isinstance(error, OSError | EOFError):
        reason = Reason.STORAGE_UNREACHABLE
    elif kind is ContentKind.ENVIRONMENT:
        reason = Reason.ENVIRONMENT_MISSING
    else:
        reason = Reason.CODE_MISSING
    return LaunchError(
        reason,
        f"the {what} that it was submitted with could not be fetched from the server:"
        f" {error}",
    )
