"""`/api/v1/nodes/…` and `/invitations`: invite machines, keep new jobs from nodes, and
remove them.
"""

from typing import Any

from gpuyard.domain.errors import GpuyardError, RefusedError
from gpuyard.domain.joining import (
    Invitation,
    KnownInvitation,
    NewInvitation,
    TendedNode,
)
from gpuyard.server.api_router import api_router
from gpuyard.server.dependencies import TheAppState

router = api_router("/nodes", tag="machines")
invitations = api_router("/invitations", tag="machines")


@router.post(":invite", status_code=201)
async def invite_node(app_state: TheAppState, body: NewInvitation) -> Invitation:
    """Invite one machine to join. The code is shown here, and never again."""
    door = app_state.agents_door
    if door is None:
        raise RefusedError(
            "This server listens for no machines.",
            'Set agents_listen = "0.0.0.0:7433" in [server] of gpuyard.toml, and'
            " restart it.",
        )
    joined_nodes = app_state.controller.joined_nodes
    made, secret = await joined_nodes.invite(body)
    try:
        await door.expect_machines()
    except GpuyardError:
        # Its code is shown to nobody.
        await joined_nodes.revoke(made.id)
        raise
    return Invitation(
        id=made.id,
        name=made.name,
        url=door.url(),
        code=f"{door.authority.fingerprint}.{secret}",
        expires_at=made.expires_at,
    )


@invitations.get("")
async def list_invitations(app_state: TheAppState) -> dict[str, Any]:
    """The invitations to join, the newest last, without their codes. `state` is `open`,
    `used`, or `over`: it has expired, or was revoked.
    """
    found: list[KnownInvitation] = app_state.controller.joined_nodes.invitations()
    return {"items": [one.model_dump() for one in found], "next": None}


@invitations.delete("/{invitation}")
async def revoke_invitation(app_state: TheAppState, invitation: str) -> KnownInvitation:
    """Let nobody join with this invitation (id, end of an id, or name) any more."""
    return await app_state.controller.joined_nodes.revoke(invitation)


@router.post("/{node}/cordon")
async def cordon_node(app_state: TheAppState, node: str) -> TendedNode:
    """Give this node (name, id or end of an id) no new jobs; what runs there runs
    on.
    """
    return await app_state.controller.joined_nodes.cordon(node, cordoned=True)


@router.post("/{node}/uncordon")
async def uncordon_node(app_state: TheAppState, node: str) -> TendedNode:
    """Give this node jobs again."""
    return await app_state.controller.joined_nodes.cordon(node, cordoned=False)


@router.post("/{node}/drain")
async def drain_node(app_state: TheAppState, node: str) -> TendedNode:
    """Cordon this node, and let the jobs move that can go on elsewhere: those that are
    preemptible or save checkpoints. The others end there.
    """
    return await app_state.controller.joined_nodes.drain(node)


@router.delete("/{node}")
async def remove_node(app_state: TheAppState, node: str) -> TendedNode:
    """Remove a machine that has joined: its certificate is worth nothing from now on,
    and its jobs are tried again elsewhere as their retries say.
    """
    return await app_state.controller.joined_nodes.remove(node)
