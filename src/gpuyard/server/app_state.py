"""The instance: everything a request may need, made once and handed to the routers by
FastAPI's dependency injection.
"""

import asyncio
import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request

from gpuyard.config.paths import Home
from gpuyard.config.settings import Settings
from gpuyard.controller.controller import Controller
from gpuyard.ledger.queries import Queries
from gpuyard.notify.notifier import Notifier
from gpuyard.resource_manager.manager import ResourceManager
from gpuyard.server.election import Election
from gpuyard.server.stream import EventStream
from gpuyard.storage.blobs import Blobs


@dataclass(slots=True)
class AppState:
    """The server's parts. `stopping` is set when the server should leave; `used_at` is
    the last request's time.

    `notifier` is there where webhooks are configured; the server that leads has it
    started. `election` is there where several servers may share the ledger. `leads`
    becomes true when this one schedules, and
    stays so: a server that may lead no longer calls `start_over`, which does not
    return.
    """

    home: Home
    settings: Settings
    controller: Controller
    manager: ResourceManager
    blobs: Blobs
    stream: EventStream
    token: str
    url: str
    election: Election | None = None
    notifier: Notifier | None = None
    leads: bool = False
    start_over: Callable[[str], None] = lambda _: None
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    used_at: float = field(default_factory=time.monotonic)

    def admits(self, token: str) -> bool:
        """Is this the token of this server, or of one that shares its ledger?

        How long the answer takes says nothing about any of them.
        """
        given = _digest(token.strip())
        others = self.election.standing.members if self.election else ()
        known = [_digest(self.token), *(member.token_sha256 for member in others)]
        # Each is compared, the first match ends nothing.
        matches = [secrets.compare_digest(given, digest) for digest in known]
        return any(matches)

    async def knows(self, token: str) -> bool:
        """`admits`, and where servers come and go one look more before a token is
        refused.
        """
        if self.admits(token):
            return True
        if self.election is None:
            return False
        await self.election.read_anew()
        return self.admits(token)

    @property
    def queries(self) -> Queries:
        """Reads of the ledger."""
        return self.controller.core.queries


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


# FastAPI would run what is not async in a thread, for each request.
async def _app_state(request: Request) -> AppState:
    app_state: AppState = request.app.state.app_state
    return app_state


TheAppState = Annotated[AppState, Depends(_app_state)]
