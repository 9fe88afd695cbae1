"""The store of secrets: one encrypted file, its key in another, both of mode 0600.

A value is bound to its name, so entries cannot be exchanged. Each write replaces the
whole file, and the key is written before the first value: whenever a writer is killed,
the store is as it was before or as it is afterwards.
"""

import fcntl
import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from gpuyard.domain.errors import RefusedError

_NONCE_BYTES = 12
_KEY_BYTES = 32


class StoredSecret(msgspec.Struct, frozen=True):
    """An encrypted value, and when it was set (UTC seconds)."""

    sealed: bytes
    set_at: float


class _SecretContent(msgspec.Struct):
    secrets: dict[str, StoredSecret] = {}
    version: int = 1


class SecretStore:
    """The secrets in `folder`. Several servers may share it.

    RefusedError when its files do not belong together; OSError.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / "secrets.json"
        self._key_file = folder / "key"

    def times(self) -> dict[str, float]:
        """When each secret was set (UTC seconds), by name."""
        return {name: secret.set_at for name, secret in self._read().secrets.items()}

    def get(self, name: str) -> str | None:
        """The value; None when there is no such secret."""
        secret = self._read().secrets.get(name)
        if secret is None:
            return None
        # Late: a server whose jobs have no secrets does without.
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce = secret.sealed[:_NONCE_BYTES]
        cipher = AESGCM(self._key(create=False))
        try:
            return cipher.decrypt(
                nonce, secret.sealed[_NONCE_BYTES:], name.encode()
            ).decode()
        except InvalidTag:
            raise RefusedError(
                f"The secret {name} cannot be decrypted with {self._key_file}.",
                f"Set it again: gpuyard secret set {name}",
            ) from None

    def put(self, name: str, value: str, now: float) -> None:
        """Set or replace a secret; it is on the disk afterwards."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        with self._locked():
            content = self._read()
            cipher = AESGCM(self._key(create=not content.secrets))
            nonce = secrets.token_bytes(_NONCE_BYTES)
            sealed = nonce + cipher.encrypt(nonce, value.encode(), name.encode())
            content.secrets[name] = StoredSecret(sealed, now)
            self._write(self._file, msgspec.json.encode(content))

    def remove(self, name: str) -> bool:
        """Remove a secret; False when there is none."""
        with self._locked():
            content = self._read()
            if content.secrets.pop(name, None) is None:
                return False
            self._write(self._file, msgspec.json.encode(content))
            return True

    @contextmanager
    def _locked(self) -> Generator[None]:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(
            self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _read(self) -> _SecretContent:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=_SecretContent)
        except FileNotFoundError:
            return _SecretContent()
        except msgspec.MsgspecError:
            raise RefusedError(
                f"The store of secrets {self._file} is damaged.",
                "Restore it from a backup, or remove it and set the secrets again.",
            ) from None

    def _key(self, *, create: bool) -> bytes:
        """The key; with `create`, a new one if there is none."""
        if create and not self._key_file.exists():
            self._write(self._key_file, secrets.token_bytes(_KEY_BYTES))
        try:
            key = self._key_file.read_bytes()
        except FileNotFoundError:
            key = b""
        if len(key) != _KEY_BYTES:
            raise RefusedError(
                f"The key of the store of secrets, {self._key_file}, is gone or"
                " damaged.",
                f"Restore it, or remove {self._file} and set the secrets again.",
            )
        return key

    def _write(self, path: Path, content: bytes) -> None:
        """Write a file whole or not at all, and wait for the disk."""
        draft = path.with_name(f"{path.name}.new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with os.fdopen(os.open(draft, flags, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
