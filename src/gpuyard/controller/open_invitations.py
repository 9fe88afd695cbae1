"""Invitations to join, as the ledger has them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuyard.domain.ids import digits_of
from gpuyard.domain.joining import InvitationState, KnownInvitation

_SHORTEST_TAIL = 4
_RENTED = "rented"
FOR_POOLS = "pooled"
"""The beginning of the ids of invitations that a pool has made for its nodes."""


@dataclass(frozen=True, slots=True)
class OpenInvitation:
    """An invitation as the ledger has it. `used_from`: the address that used it."""

    id: str
    name: str | None
    expires_at: float
    used_at: float | None = None
    used_from: str | None = None
    node_id: str | None = None

    def is_open(self, now: float) -> bool:
        """Whether a machine may join with it."""
        return not self.used_at and now < self.expires_at

    def is_called(self, reference: str) -> bool:
        """Whether people mean it with this name, id or end of an id."""
        if reference in (self.id, self.name):
            return True
        return len(reference) >= _SHORTEST_TAIL and self.id.endswith(reference)

    def known(self, now: float) -> KnownInvitation:
        """As people see it."""
        state = InvitationState.OPEN if self.is_open(now) else InvitationState.OVER
        return KnownInvitation(
            id=self.id,
            name=self.name,
            state=InvitationState.USED if self.used_at else state,
            expires_at=self.expires_at,
            used_at=self.used_at,
            used_from=self.used_from,
        )

    def counts(self, now: float) -> bool:
        """Whether it is open and a person has made it. Those of providers and pools
        come and go by themselves.
        """
        return self.is_open(now) and not self.id.startswith((_RENTED, FOR_POOLS))

    @property
    def attempt_id(self) -> str:
        """The attempt for which its machine is rented; empty for any other machine."""
        kind, _, digits = self.id.partition("_")
        return f"attempt_{digits}" if kind == _RENTED else ""

    def used_at_ago(self, now: float) -> str:
        """When it was used, and from where."""
        ago_s = max(now - (self.used_at or now), 0.0)
        return f"{ago_s:.0f} s ago, from {self.used_from}"


def rented_invitation_id(attempt_id: str) -> str:
    """The invitation of the machine that is rented for this attempt: there is one for
    each.
    """
    return f"{_RENTED}_{digits_of(attempt_id)}"


def invitation_of_row(row: Mapping[str, Any]) -> OpenInvitation:
    """An invitation from its row in the ledger."""
    return OpenInvitation(
        row["id"],
        row["name"],
        row["expires_at"],
        row["used_at"],
        row["used_from"],
        row["node_id"],
    )
