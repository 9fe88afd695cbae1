"""Bearer tokens. The embedded server has one, in a file only its owner can read."""

import os
import re
import secrets
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.users import TOKEN_PREFIX

_SHORTEST = 16


def ensure_token(path: Path) -> str:
    """The token in `path`, made with mode 0600 if there is none.

    `$GPUYARD_TOKEN` wins. InvalidInputError when it is too short, no header can carry
    it, or it is a user's.
    """
    given = os.environ.get("GPUYARD_TOKEN", "")
    if given:
        return _checked(given.strip())
    kept = path.read_text().strip() if path.exists() else ""
    if kept:
        return kept
    with replacing_token(path) as token:
        return token


@contextmanager
def replacing_token(path: Path) -> Generator[str]:
    """A new token. At the end of the block `path` has it, with mode 0600, unless the
    block fails.
    """
    token = secrets.token_urlsafe(32)
    # Whole or not at all: a disk that is full must not leave an empty token behind.
    partial = path.with_suffix(".partial")
    try:
        with os.fdopen(
            os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w"
        ) as file:
            file.write(token + "\n")
        yield token
        partial.rename(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def bearer_of(headers: Mapping[bytes, bytes]) -> str | None:
    """The token that a request shows."""
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    given = token.strip()
    return given.decode("latin-1") if scheme.lower() == b"bearer" and given else None


def _checked(token: str) -> str:
    # Who has the token of the instance may do everything, and this one a user has.
    if token.startswith(TOKEN_PREFIX):
        raise InvalidInputError.of(
            "GPUYARD_TOKEN",
            "is the token of a user, and a server would take it for its owner's",
            "unset it before a server is started; `gpuyard login` keeps such a token",
        )
    if len(token) < _SHORTEST:
        raise InvalidInputError.of(
            "GPUYARD_TOKEN",
            f"has {len(token)} characters, so it can be guessed",
            f"use at least {_SHORTEST}, such as those of `openssl rand -base64 32`",
        )
    if not re.fullmatch(r"[!-~]+", token):
        raise InvalidInputError.of(
            "GPUYARD_TOKEN",
            "has a space, a control character or one outside ASCII",
            "use letters, digits and signs of ASCII alone",
        )
    return token
