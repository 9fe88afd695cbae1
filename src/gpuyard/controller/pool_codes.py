"""How the nodes of pools join: each by an invitation of its own.

The secret of an invitation follows from the id of the node and the key of the authority
of the instance. So an order that is repeated after a crash has the same words, and no
secret is stored.
"""

from gpuyard.controller.core import Core
from gpuyard.controller.joined_nodes import JoinedNodes
from gpuyard.controller.joining_door import InstanceDoor
from gpuyard.controller.pool_rows import PoolRow
from gpuyard.domain.joining import NewInvitation
from gpuyard.providers.pool_hands import PoolOrder

# A node may wait for long in the queue of an external queue.
_GOOD_FOR_S = 86_400.0


class PoolCodes:
    """Invites the nodes of pools."""

    def __init__(
        self, core: Core, joined_nodes: JoinedNodes, door: InstanceDoor
    ) -> None:
        self._core = core
        self._joined_nodes = joined_nodes
        self._door = door

    async def order(self, row: PoolRow) -> PoolOrder:
        """The order for a node; the same one each time. ProviderError where no machine
        may join; RefusedError if another node has its name.
        """
        door = self._door.get()
        secret = door.secret_for(row.id)
        known = self._joined_nodes.invited_with(secret)
        if known is None:
            given = NewInvitation(name=row.name, expires_in_s=_GOOD_FOR_S)
            await self._joined_nodes.invite(given, secret)
        url = await door.url_for_machines()
        code = f"{door.fingerprint}.{secret}"
        return PoolOrder(row.id, row.name, url, code)

    def node_of(self, row: PoolRow) -> str | None:
        """The node that has joined by the invitation; None if none has."""
        known = self._joined_nodes.invited_with(self._door.secret_for(row.id))
        return known.node_id if known else None

    async def withdraw(self, row: PoolRow) -> None:
        """Let nobody join by the invitation any more."""
        known = self._joined_nodes.invited_with(self._door.secret_for(row.id))
        if known and known.is_open(self._core.clock()):
            await self._joined_nodes.revoke(known.id)
