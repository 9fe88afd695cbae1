"""What the OpenAPI document says about the token."""

from typing import Annotated

from fastapi import Depends
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

_bearer = HTTPBearer(
    auto_error=False,
    description="The token in `$GPUYARD_HOME/token`, or `$GPUYARD_TOKEN`.",
)
Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


async def document_token(_given: Credentials) -> None:
    """Say in the OpenAPI document that a route wants the token.

    The edge has looked at it before any route is found (edge.py).
    """
