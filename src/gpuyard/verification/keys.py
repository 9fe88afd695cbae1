"""The instance's own key (Ed25519), which signs receipts and evidence.

It is made once, in a file that only its owner can read.
"""

import os
import secrets
import stat
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)

from gpuyard.domain.errors import InvalidInputError, quoted

NAME = "key.pem"
_LARGEST = 10_000  # bytes of a file that holds a key


def instance_key(folder: Path) -> Ed25519PrivateKey:
    """The key in `folder`, made if it does not exist.

    Two processes that make it at once get the same key. Raises InvalidInputError when
    the file has no such key, or when others may read it.
    """
    path = folder / NAME
    if not path.exists():
        _make(path)
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise InvalidInputError.of(
            str(path),
            "may be read by others, who could sign in the instance's name",
            f"chmod 600 {path}, or remove it to get a new key when somebody has"
            " read it",
        )
    try:
        key = serialization.load_pem_private_key(
            path.read_bytes()[:_LARGEST], password=None
        )
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidInputError.of(
            str(path),
            "is no Ed25519 key in PEM",
            "put it back from a copy, or remove it",
        )
    return key


def public_hex(key: Ed25519PrivateKey | Ed25519PublicKey) -> str:
    """The public key in 64 hexadecimal digits."""
    return _public(key).public_bytes_raw().hex()


def read_public(text: str, field: str = "key") -> Ed25519PublicKey:
    """Read a public key from hex digits or PEM; InvalidInputError names `field`."""
    word = text.strip()
    try:
        if not word.startswith("-----"):
            return Ed25519PublicKey.from_public_bytes(bytes.fromhex(word))
        key = serialization.load_pem_public_key(word[:_LARGEST].encode())
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        remedy = "give its 64 hexadecimal digits or its PEM"
        raise InvalidInputError.of(
            field, f"is {quoted(word)}, which is no public Ed25519 key", remedy
        )
    return key


def _make(path: Path) -> None:
    """Write the key to another file and link it.

    So the name never shows half a key, and a second process changes nothing.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    content = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        path.hardlink_to(fresh)
    except FileExistsError:
        pass
    finally:
        fresh.unlink()


def _public(key: Ed25519PrivateKey | Ed25519PublicKey) -> Ed25519PublicKey:
    return key if isinstance(key, Ed25519PublicKey) else key.public_key()
