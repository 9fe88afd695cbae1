"""The yard: everything a request may need, made once and handed to the routers by FastAPI's dependency injection."""

import asyncio
import secrets
import time
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request

from gpuyard.config.paths import Home
from gpuyard.config.settings import Settings
from gpuyard.controller.controller import Controller
from gpuyard.ledger.queries import Queries
from gpuyard.server.stream import Stream
from gpuyard.storage.blobs import BlobStore


@dataclass(slots=True)
class Yard:
    """The server's parts. `stopping` is set when the server should leave; `used_at` is the last request's time."""

    home: Home
    settings: Settings
    controller: Controller
    blobs: BlobStore
    stream: Stream
    token: str
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    used_at: float = field(default_factory=time.monotonic)

    def admits(self, token: str) -> bool:
        """Is this the yard's token?"""
        return secrets.compare_digest(token.strip().encode(), self.token.encode())

    @property
    def queries(self) -> Queries:
        """Reads of the ledger."""
        return self.controller.core.queries


def _yard(request: Request) -> Yard:
    yard: Yard = request.app.state.yard
    return yard


TheYard = Annotated[Yard, Depends(_yard)]
