"""Bearer tokens. The embedded server has one, in a file only its owner can read."""

import os
import secrets
from pathlib import Path

from fastapi import Request

from gpuyard.domain.errors import UnauthorizedError
from gpuyard.server.yard import TheYard


def ensure_token(path: Path) -> str:
    """The token in `path`, made with mode 0600 if there is none. `$GPUYARD_TOKEN` wins."""
    given = os.environ.get("GPUYARD_TOKEN")
    if given:
        return given
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path.read_text().strip()
    token = secrets.token_urlsafe(32)
    with os.fdopen(descriptor, "w") as file:
        file.write(token + "\n")
    return token


async def require_token(request: Request, yard: TheYard) -> None:
    """Refuse a request without the yard's token."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not secrets.compare_digest(token.strip().encode(), yard.token.encode()):
        raise UnauthorizedError(
            "This request carries no valid token.",
            f"Send `Authorization: Bearer …`; the token is in {yard.home.token}.",
        )
