"""How the nodes of pools join: each by an invitation of its own.

The secret of an invitation follows from the id of the node and a key of the ledger. So
an order that is repeated after a crash has the same words, and no secret is stored.
"""

import base64
import hashlib
import hmac
import secrets
from typing import Protocol

from gpuyard.controller.core import Core
from gpuyard.controller.joined_nodes import JoinedNodes
from gpuyard.controller.pool_rows import PoolRow
from gpuyard.domain.errors import ProviderError
from gpuyard.domain.joining import NewInvitation
from gpuyard.providers.pool_hands import PoolOrder

# The note of the ledger that has the key.
_NOTE = "pool_key"
_KEY_BYTES = 32
# A node may wait for long in the queue of an external queue.
_GOOD_FOR_S = 86_400.0
NO_DOOR = (
    "this server listens for no machines: see server.agents_listen; where several"
    " servers share a ledger, there are no pools"
)


class MachinesDoor(Protocol):
    """Where machines ask to join."""

    async def expect_machines(self) -> None:
        """Listen while an invitation is open."""
        ...

    def url(self) -> str:
        """Where they dial."""
        ...

    def code(self, secret: str) -> str:
        """The code of an invitation with this secret."""
        ...


class PoolCodes:
    """Invites the nodes of pools. `door` is there once the server listens."""

    def __init__(self, core: Core, joined_nodes: JoinedNodes) -> None:
        self._core = core
        self._joined_nodes = joined_nodes
        self.door: MachinesDoor | None = None
        self._key = b""

    def reload(self) -> None:
        """Read the key from the ledger again."""
        self._key = b""

    async def order(self, row: PoolRow) -> PoolOrder:
        """The order for a node; the same one each time. ProviderError where no machine
        may join; RefusedError if there are too many invitations.
        """
        if self.door is None:
            raise ProviderError(NO_DOOR, row.provider, "SETTING")
        secret = self._secret(row.id)
        known = self._joined_nodes.invited_with(secret)
        if known is None:
            given = NewInvitation(name=row.name, expires_in_s=_GOOD_FOR_S)
            await self._joined_nodes.invite(given, secret)
        await self.door.expect_machines()
        return PoolOrder(row.id, row.name, self.door.url(), self.door.code(secret))

    def node_of(self, row: PoolRow) -> str | None:
        """The node that has joined by the invitation; None if none has."""
        known = self._joined_nodes.invited_with(self._secret(row.id))
        return known.node_id if known else None

    async def withdraw(self, row: PoolRow) -> None:
        """Let nobody join by the invitation any more."""
        known = self._joined_nodes.invited_with(self._secret(row.id))
        if known and known.is_open(self._core.clock()):
            await self._joined_nodes.revoke(known.id)

    def _secret(self, row_id: str) -> str:
        digest = hmac.digest(self._known_key(), row_id.encode(), hashlib.sha256)
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")

    def _known_key(self) -> bytes:
        """Made when it is needed first. It is committed with the first invitation,
        before anybody gets a secret.
        """
        if not self._key:
            note = self._core.queries.note(_NOTE)
            made = secrets.token_hex(_KEY_BYTES)
            self._key = bytes.fromhex(note.get("key") or made)
            if not note:
                self._core.writer.set_note(_NOTE, {"key": made})
        return self._key
