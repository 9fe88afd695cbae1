"""Where the values of secrets come from: the store, named variables of the server,
files in a folder, and a command that asks another vault. Values are read when a job
starts, and kept nowhere.
"""

import asyncio
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from gpuyard.config.private_environment import public_environment
from gpuyard.config.settings import SecretSettings
from gpuyard.domain.errors import GpuyardError
from gpuyard.domain.secret_facts import SecretFacts
from gpuyard.domain.secret_names import is_secret_name, split_stored, stored_name
from gpuyard.storage.secret_store import SecretStore

MAX_VALUE_BYTES = 64_000
_NOTE_USE_S = 10.0


class SecretMissingError(GpuyardError):
    """No source has this secret."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"There is no secret {name!r}.", f"Set it: gpuyard secret set {name}"
        )


class SecretUnavailableError(GpuyardError):
    """A source did not answer. The message never holds what it printed."""


class SecretSources:
    """The secrets of one instance. `folder` holds the store."""

    def __init__(self, folder: Path, settings: SecretSettings) -> None:
        self.store = SecretStore(folder)
        self._settings = settings
        self._used_file = folder / "used.json"
        self._used: dict[str, float] | None = None
        self._noted_at = 0.0

    def listing(self) -> list[SecretFacts]:
        """The secrets whose names are known, by name, the shared one first; never their
        values.
        """
        used = self._times_of_use()
        set_at = self.store.times()
        # The first source that has a name gives its value.
        sources = dict.fromkeys(self._file_names(), "folder")
        sources |= dict.fromkeys(self._settings.environment, "environment")
        sources |= dict.fromkeys(set_at, "store")
        found: list[SecretFacts] = []
        for stored, source in sources.items():
            name, owner = split_stored(stored)
            found.append(
                SecretFacts(
                    name=name,
                    owner=owner,
                    source=source,
                    set_at=set_at.get(stored),
                    used_at=used.get(stored),
                )
            )
        return sorted(found, key=lambda facts: (facts.name, facts.owner or ""))

    async def value(self, name: str, owner: str | None = None) -> str:
        """The value for a job of `owner`: that of its own secret, else of the shared
        one. SecretMissingError, SecretUnavailableError, RefusedError.
        """
        own = self.store.get(stored_name(name, owner)) if owner else None
        return await self._shared(name) if own is None else own

    def has_own(self, name: str, owner: str | None) -> bool:
        """Whether a user has a secret of this name of its own."""
        return owner is not None and stored_name(name, owner) in self.store.times()

    async def _shared(self, name: str) -> str:
        found = self.store.get(name)
        if found is None and name in self._settings.environment:
            found = os.environ.get(name)
        if found is None and self._settings.folder:
            found = await asyncio.to_thread(_read, self._settings.folder / name)
        if found is None and self._settings.command:
            found = await self._ask(name)
        if found is None:
            raise SecretMissingError(name)
        return found

    def note_use(self, names: Iterable[str], owner: str | None = None) -> None:
        """Note that a job of `owner` gets these now; written now and then."""
        used = self._times_of_use()
        kept = self.store.times()
        now = time.time()
        for name in names:
            own = stored_name(name, owner)
            used[own if own in kept else name] = now
        if time.monotonic() - self._noted_at < _NOTE_USE_S:
            return
        self._noted_at = time.monotonic()
        # Only people look at it: a full disk must not stop a job.
        with suppress(OSError):
            draft = self._used_file.with_suffix(".new")
            draft.touch(mode=0o600)
            draft.write_bytes(msgspec.json.encode(used))
            draft.replace(self._used_file)

    def _times_of_use(self) -> dict[str, float]:
        if self._used is None:
            self._used = {}
            with suppress(OSError, msgspec.MsgspecError):
                content = self._used_file.read_bytes()
                self._used = msgspec.json.decode(content, type=dict[str, float])
        return self._used

    def _file_names(self) -> list[str]:
        folder = self._settings.folder
        try:
            files = list(folder.iterdir()) if folder else []
        except OSError:
            return []
        return [file.name for file in files if is_secret_name(file.name)]

    async def _ask(self, name: str) -> str | None:
        """What the command prints for a secret; None if it ends with another code than
        0.
        """
        command = [word.replace("{name}", name) for word in self._settings.command]
        timeout_s = self._settings.command_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                code, output = await _run(command, self._environment())
        except TimeoutError:
            raise SecretUnavailableError(
                f"secrets.command gave no value for {name!r} in {timeout_s:g} s."
            ) from None
        except OSError as error:
            raise SecretUnavailableError(
                f"secrets.command cannot be started: {error.strerror}."
            ) from None
        if code:
            return None
        return _checked("secrets.command", name, output)

    def _environment(self) -> dict[str, str]:
        wanted = self._settings.command_environment
        given = {name: os.environ[name] for name in wanted if name in os.environ}
        return public_environment() | given


async def _run(
    command: Sequence[str], environment: dict[str, str]
) -> tuple[int, bytes]:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=environment,
    )
    assert process.stdout
    try:
        output = b""
        while len(output) <= MAX_VALUE_BYTES + 1:
            part = await process.stdout.read(MAX_VALUE_BYTES)
            if not part:
                return await process.wait(), output
            output += part
        return 0, output
    finally:
        with suppress(ProcessLookupError):
            process.kill()


def _read(file: Path) -> str | None:
    """The content of a file; None if there is no such file."""
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_VALUE_BYTES + 2)
    except (FileNotFoundError, IsADirectoryError):
        return None
    except OSError as error:
        raise SecretUnavailableError(
            f"secrets.folder: {file} cannot be read: {error.strerror}."
        ) from None
    return _checked("secrets.folder", file.name, content)


def _checked(source: str, name: str, output: bytes) -> str:
    """What a source gave, without the end of its line."""
    value = output.removesuffix(b"\n")
    if b"\0" in value or len(value) > MAX_VALUE_BYTES or not value:
        raise SecretUnavailableError(
            f"{source} gave no usable value for {name!r}: it must be text of 1"
            f" to {MAX_VALUE_BYTES} bytes."
        )
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise SecretUnavailableError(
            f"{source} gave no UTF-8 text for {name!r}."
        ) from None
