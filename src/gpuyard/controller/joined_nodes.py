"""Machines that join the instance, and what people ask of nodes: cordon, drain,
remove.

Of an invitation only the digest of its secret is stored.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from gpuyard.config.proof import digest_of
from gpuyard.controller import transitions
from gpuyard.controller.attempt_outcome import outcome_of
from gpuyard.controller.core import Core
from gpuyard.controller.gangs import Gangs, has_ended_on
from gpuyard.controller.launching import Launching
from gpuyard.controller.open_invitations import (
    FOR_POOLS,
    OpenInvitation,
    invitation_of_row,
    rented_invitation_id,
)
from gpuyard.controller.requests import Requests
from gpuyard.domain.errors import NotFoundError, RefusedError
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.domain.ids import new_id
from gpuyard.domain.joining import (
    CODE_BYTES,
    KnownInvitation,
    NewInvitation,
    TendedNode,
    node_name,
)
from gpuyard.domain.reasons import Reason
from gpuyard.domain.states import AttemptState
from gpuyard.providers.configured import Providers
from gpuyard.scheduler.attempts import LiveAttempt
from gpuyard.scheduler.nodes import REMOVED, Node

_SHORTEST_TAIL = 4
_MOST_OPEN = 100


@dataclass(frozen=True, slots=True)
class JoinedMachine:
    """A machine that joins: its node, and the certificate that was made for it."""

    node_id: str
    name: str
    certificate: str


class JoinedNodes:
    """Invitations and members, as an extension of the controller.

    `sign(csr, node_id)` in `join` gives a certificate and its fingerprint.
    """

    def __init__(
        self,
        core: Core,
        providers: Providers,
        launching: Launching,
        requests: Requests,
    ) -> None:
        self._core = core
        self._providers = providers
        self._launching = launching
        self._gangs = Gangs(core)
        self._requests = requests
        # By the digests of their secrets; and nodes by the fingerprints of theirs.
        self._invitations: dict[str, OpenInvitation] = {}
        self._members: dict[str, str] = {}
        # The digest of the secret for each machine that is rented for an attempt.
        self._rented: dict[str, str] = {}
        # Of which provider a machine is that joins for an attempt; RefusedError.
        self.provider_for: Callable[[str], str] = lambda _: self._provider_name()

    # --- the extension ---

    def start(self) -> None:
        """Find invitations and members in the ledger."""
        self.reload()

    def before_deciding(self) -> None:
        """Nothing: what decisions depend on is in the view."""

    def reload(self) -> None:
        """Find them in the ledger again."""
        queries = self._core.queries
        self._invitations = {
            row["sha256"]: invitation_of_row(row) for row in queries.invitations()
        }
        self._rented = {
            one.attempt_id: digest
            for digest, one in self._invitations.items()
            if one.attempt_id
        }
        self._members = {
            row["certificate"]: row["id"]
            for row in queries.nodes()
            if row["certificate"]
        }

    @property
    def idle(self) -> bool:
        """True: nothing is left to do."""
        return True

    async def close(self) -> None:
        """Nothing is open."""

    # --- joining ---

    @property
    def open_until(self) -> float:
        """Until when machines may come to join, UTC seconds; 0 if none may. Who comes
        with an invitation that was used is told so until it expires.
        """
        return max((one.expires_at for one in self._invitations.values()), default=0.0)

    async def invite(
        self, given: NewInvitation, secret: str = ""
    ) -> tuple[OpenInvitation, str]:
        """A new invitation and its secret, which nobody is shown again: a random one,
        or `secret`, that of a node of a pool. RefusedError if the name is taken, or if
        people have too many that are open.
        """
        now = self._core.clock()
        if given.name and self._is_taken(given.name):
            raise RefusedError(
                f"There is a node {given.name} already.",
                f"Give another --name, or remove it: `gpuyard nodes remove"
                f" {given.name}`.",
            )
        waiting = [one for one in self._invitations.values() if one.counts(now)]
        if not secret and len(waiting) >= _MOST_OPEN:
            raise RefusedError(
                f"There are {_MOST_OPEN} invitations, and no more at a time.",
                "Wait until some have expired.",
            )
        made_id = new_id(FOR_POOLS if secret else "invitation")
        secret = secret or secrets.token_urlsafe(CODE_BYTES)
        expires_at = now + given.expires_in_s
        made = OpenInvitation(made_id, given.name, expires_at)
        await self._add(made, digest_of(secret))
        return made, secret

    async def _add(self, made: OpenInvitation, digest: str) -> None:
        now = self._core.clock()
        values = {
            "name": made.name,
            "sha256": digest,
            "created_at": now,
            "expires_at": made.expires_at,
        }
        info = {"invitation": made.id, "name": made.name}
        change = Change(Table.INVITATIONS, made.id, values)
        self._core.emit([Event(EventKind.NODE_INVITED, now, (change,), None, info)])
        self._invitations[digest] = made
        await self._core.committed()

    def invited_with(self, secret: str) -> OpenInvitation | None:
        """The invitation with this secret; None if there is none."""
        return self._invitations.get(digest_of(secret))

    def invitations(self) -> list[KnownInvitation]:
        """All invitations, the newest last."""
        now = self._core.clock()
        made_by_people = [
            one for one in self._invitations.values() if not one.attempt_id
        ]
        found = sorted(made_by_people, key=lambda one: one.id)
        return [one.known(now) for one in found]

    async def revoke(self, reference: str) -> KnownInvitation:
        """Let nobody join with this invitation any more. NotFoundError; RefusedError if
        a machine has joined with it.
        """
        now = self._core.clock()
        secret, found = self._find_invitation(reference, now)
        if found.used_at:
            raise RefusedError(
                f"It was used {found.used_at_ago(now)}, by the machine that is"
                f" {found.name} now.",
                f"To keep that out: `gpuyard nodes remove {found.name}`.",
            )
        revoked = replace(found, expires_at=min(found.expires_at, now))
        values = {"expires_at": revoked.expires_at}
        change = Change(Table.INVITATIONS, found.id, values)
        info = {"invitation": found.id, "name": found.name}
        kind = EventKind.INVITATION_REVOKED
        self._core.emit([Event(kind, now, (change,), None, info)])
        self._invitations[secret] = revoked
        await self._core.committed()
        return revoked.known(now)

    def _find_invitation(
        self, reference: str, now: float
    ) -> tuple[str, "OpenInvitation"]:
        """The one with this id, end of an id, or name; of several with a name, the only
        one that is open. With the digest of its secret.
        """
        known = self._invitations.items()
        found = [entry for entry in known if entry[1].is_called(reference)]
        if len(found) > 1:
            still = [entry for entry in found if entry[1].is_open(now)]
            found = still or found
        if len(found) == 1:
            return found[0]
        seen = "`gpuyard nodes invitations` lists them."
        if not found:
            raise NotFoundError(f"There is no invitation {reference!r}.", seen)
        ids = ", ".join(one.id for _, one in found)
        raise NotFoundError(f"{reference!r} could be {ids}.", seen)

    async def join(
        self,
        secret: str,
        host: str,
        version: str,
        address: str,
        sign: Callable[[str], tuple[str, str]],
    ) -> JoinedMachine:
        """Let a machine join with the secret of an invitation, which is used up then.

        `host` is what it calls itself, `address` where it calls from. `sign(node_id)`
        gives its certificate and the fingerprint of that. RefusedError.
        """
        now = self._core.clock()
        invitation = self._usable(secret, now)
        node_id = new_id("node")
        certificate, fingerprint = sign(node_id)
        # Until the event is emitted nobody else runs, so nobody uses it, too.
        name = self._name_for(invitation, host)
        used = replace(
            invitation, used_at=now, used_from=address, node_id=node_id, name=name
        )
        node: dict[str, Any] = {
            "name": name,
            "provider": self._provider_of(invitation),
            "state": "silent",
            "reason": "it has joined, and its agent has not connected yet",
            "boot_id": "",
            "cpus": 0.0,
            "memory_gb": 0.0,
            "limits": {},
            "seen_at": now,
            "version": version,
            "cordoned": False,
            "certificate": fingerprint,
        }
        use = {"used_at": now, "used_from": address, "node_id": node_id, "name": name}
        changes = (
            Change(Table.NODES, node_id, node),
            Change(Table.INVITATIONS, invitation.id, use),
        )
        info = {"node": node_id, "name": name, "address": address}
        self._core.emit([Event(EventKind.NODE_JOINED, now, changes, None, info)])
        self._invitations[digest_of(secret)] = used
        self._members[fingerprint] = node_id
        await self._core.committed()
        return JoinedMachine(node_id, name, certificate)

    def _usable(self, secret: str, now: float) -> OpenInvitation:
        found = self._invitations.get(digest_of(secret))
        again = "Make another: `gpuyard nodes invite`."
        if found is None:
            raise RefusedError("There is no such invitation.", again)
        if found.used_at:
            raise RefusedError(
                f"This invitation was used {found.used_at_ago(now)}, by the machine"
                f" that is {found.name} now.",
                f"If that was not you, remove it: `gpuyard nodes remove {found.name}`."
                f" {again}",
            )
        if now >= found.expires_at:
            raise RefusedError("This invitation has expired, or was revoked.", again)
        return found

    def _name_for(self, invitation: OpenInvitation, host: str) -> str:
        """The name of a machine that joins; RefusedError if it is taken by now."""
        if invitation.name:
            if self._is_taken(invitation.name):
                raise RefusedError(
                    f"There is a node {invitation.name} already.",
                    "Make an invitation with another --name.",
                )
            return invitation.name
        try:
            wished = node_name(host.partition(".")[0])
        except ValueError:
            wished = "node"
        name = wished
        number = 1
        while self._is_taken(name):
            number += 1
            name = f"{wished}-{number}"
        return name

    def _is_taken(self, name: str) -> bool:
        return any(
            node.name == name and node.state != REMOVED
            for node in self._core.view.nodes.values()
        )

    def _provider_of(self, invitation: OpenInvitation) -> str:
        """Of whose nodes a machine becomes one that joins with it; RefusedError."""
        attempt_id = invitation.attempt_id
        return self.provider_for(attempt_id) if attempt_id else self._provider_name()

    # --- rented machines ---

    async def invite_rented(
        self, attempt_id: str, name: str, secret: str, for_s: float
    ) -> None:
        """Let the machine join that is rented for an attempt; again if it has not."""
        digest = digest_of(secret)
        known = self._invitations.get(digest)
        if known and known.used_at:
            return
        expires_at = self._core.clock() + for_s
        made = OpenInvitation(rented_invitation_id(attempt_id), name, expires_at)
        self._rented[attempt_id] = digest
        await self._add(made, digest)

    def rented_node(self, attempt_id: str) -> str:
        """The node that has joined for an attempt; empty if none has."""
        found = self._invitations.get(self._rented.get(attempt_id, ""))
        return (found.node_id or "") if found else ""

    def rented_for(self, node_id: str) -> str:
        """For which attempt a node has joined; empty if for none."""
        found = (one for one in self._rented if self.rented_node(one) == node_id)
        return next(found, "")

    async def end_rented(self, attempt_id: str) -> None:
        """Nobody joins for this attempt any more, and its node is removed."""
        node_id = self.rented_node(attempt_id)
        invitation = self._invitations.pop(self._rented.pop(attempt_id, ""), None)
        if invitation is None:
            return
        change = Change(Table.INVITATIONS, invitation.id, None)
        info = {"invitation": invitation.id, "name": invitation.name}
        kind = EventKind.INVITATION_REVOKED
        event = Event(kind, self._core.clock(), (change,), None, info)
        self._core.emit([event])
        if node_id and self._core.view.node(node_id).state != REMOVED:
            await self.remove(node_id)
        await self._core.committed()

    def _provider_name(self) -> str:
        """The provider of our own nodes."""
        return next(iter(self._providers.node_providers))

    def node_of(self, fingerprint: str) -> Node | None:
        """The node that has this certificate; None if none ever had. It may have been
        removed since.
        """
        node_id = self._members.get(fingerprint)
        return None if node_id is None else self._core.view.node(node_id)

    # --- what people ask of nodes ---

    def find(self, reference: str) -> Node:
        """The node with this name, id or end of an id; NotFoundError."""
        nodes = [
            node for node in self._core.view.nodes.values() if node.state != REMOVED
        ]
        found = [node for node in nodes if reference in (node.name, node.id)]
        if not found and len(reference) >= _SHORTEST_TAIL:
            found = [node for node in nodes if node.id.endswith(reference)]
        if not found:
            titles = {node.title for node in nodes if node.title}
            names = ", ".join(sorted(titles)) or "none"
            raise NotFoundError(
                f"There is no node {reference!r}.", f"There are: {names}."
            )
        if len(found) > 1:
            ids = ", ".join(node.id for node in found)
            raise NotFoundError(
                f"{reference!r} could be {ids}.", "Give the end of its id."
            )
        return found[0]

    async def cordon(self, reference: str, *, cordoned: bool) -> TendedNode:
        """Give a node no new jobs, or (`cordoned` false) new jobs again."""
        return _tended(await self._cordon(reference, cordoned=cordoned))

    async def _cordon(self, reference: str, *, cordoned: bool) -> Node:
        node = self.find(reference)
        if node.cordoned != cordoned:
            self._change(node, EventKind.NODE_CHANGED, {"cordoned": cordoned})
            self._take_back_prefetched(node)
            self._core.schedule()
        await self._core.committed()
        return self._core.view.node(node.id)

    async def drain(self, reference: str) -> TendedNode:
        """Cordon a node, and let the jobs move that can go on elsewhere."""
        node = await self._cordon(reference, cordoned=True)
        core = self._core
        running = self._attempts_on(node)
        bodies = core.queries.specs({attempt.job_id for attempt in running})
        moved: list[str] = []
        left: list[str] = []
        for attempt in running:
            spec = core.read_spec(bodies[attempt.job_id])
            if attempt.state is AttemptState.ENDING:
                moved.append(attempt.job_id)
            elif spec.preemptible or spec.checkpoint.path:
                core.emit([transitions.ending(attempt, Reason.PREEMPTED, core.clock())])
                core.on_ending(attempt)
                moved.append(attempt.job_id)
            else:
                left.append(attempt.job_id)
        await core.committed()
        tended = _tended(core.view.node(node.id))
        return tended.model_copy(update={"moved": moved, "left": left})

    async def remove(self, reference: str) -> TendedNode:
        """Remove a machine that has joined: its certificate is worth nothing, its link
        ends, and its attempts are lost. RefusedError for the node of a server's home.
        """
        node = self.find(reference)
        if not node.joined:
            raise RefusedError(
                f"{node.title} is the server's own machine.",
                "Only machines that have joined are removed. `gpuyard nodes cordon`"
                " keeps new jobs from it.",
            )
        core = self._core
        values: dict[str, Any] = {
            "state": REMOVED,
            "reason": "it was removed",
            # Nothing fits there, and no provider runs anything there.
            "provider": "",
            "cpus": 0.0,
            "memory_gb": 0.0,
        }
        gone = [Change(Table.GPUS, uuid, {"node_id": None}) for uuid in node.devices]
        self._change(node, EventKind.NODE_REMOVED, values, gone)
        for attempt in self._attempts_on(node):
            self._lose(attempt, node)
        # Not before the commit: what is told to go must not be part of it afterwards.
        await core.committed()
        for provider in self._providers.node_providers.values():
            provider.dismiss_node(node.id, f"{node.title} was removed.")
        core.schedule()
        return _tended(core.view.node(node.id))

    def _lose(self, attempt: LiveAttempt, node: Node) -> None:
        """An attempt is lost; one on several nodes once its other shares have ended."""
        lost = self._gangs.lost_share(
            attempt,
            node.id,
            Reason.ATTEMPT_LOST,
            f"its node {node.title} was removed from the instance",
        )
        if lost is not None:
            self._launching.record_end(attempt, outcome_of(lost))

    def _attempts_on(self, node: Node) -> list[LiveAttempt]:
        return [
            attempt
            for attempt in self._core.view.attempts_on(node.id)
            if self._providers.node_provider(attempt.provider) is not None
            and not has_ended_on(attempt, node.id)
        ]

    def _take_back_prefetched(self, node: Node) -> None:
        """Take back what was sent ahead to a node that is cordoned now."""
        if not node.cordoned:
            return
        for attempt in self._attempts_on(node):
            if attempt.prefetched and attempt.state is not AttemptState.ENDING:
                now = self._core.clock()
                self._core.emit([transitions.ending(attempt, Reason.REVOKED, now)])
                self._core.on_ending(attempt)

    def _change(
        self,
        node: Node,
        kind: EventKind,
        values: dict[str, Any],
        more: list[Change] | None = None,
    ) -> None:
        changes = (Change(Table.NODES, node.id, values), *(more or ()))
        info = {"node": node.id, "name": node.name, **values}
        self._core.emit([Event(kind, self._core.clock(), changes, None, info)])


def _tended(node: Node) -> TendedNode:
    return TendedNode(
        id=node.id, name=node.title, state=node.state, cordoned=node.cordoned
    )
