"""Bearer tokens. The embedded server has one, in a file only its owner can read."""

import os
import secrets
from pathlib import Path
from typing import Annotated

from fastapi import Depends
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

_bearer = HTTPBearer(
    auto_error=False,
    description="The token in `$GPUYARD_HOME/token`, or `$GPUYARD_TOKEN`.",
)
Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


def ensure_token(path: Path) -> str:
    """The token in `path`, made with mode 0600 if there is none.

    `$GPUYARD_TOKEN` wins.
    """
    kept = os.environ.get("GPUYARD_TOKEN") or (
        path.read_text().strip() if path.exists() else ""
    )
    if kept:
        return kept
    token = secrets.token_urlsafe(32)
    # Whole or not at all: a disk that is full must not leave an empty token behind.
    partial = path.with_suffix(".partial")
    with os.fdopen(
        os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w"
    ) as file:
        file.write(token + "\n")
    partial.rename(path)
    return token


async def document_token(_given: Credentials) -> None:
    """Say in the OpenAPI document that a route wants the token.

    The edge has looked at it before any route is found (edge.py).
    """
