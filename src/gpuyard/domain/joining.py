"""How a machine joins an instance: invitations, and what is said on the way in."""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field

from gpuyard.domain.errors import InvalidInputError, quoted
from gpuyard.domain.strict_model import StrictModel
from gpuyard.domain.units import seconds

SERVER_NAME = "gpuyard-server"
"""The name in the server's certificate. Machines look for it wherever they dial."""
CODE_BYTES = 24
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_CODE = re.compile(r"([0-9a-f]{64})\.([A-Za-z0-9_-]{20,100})")
_MOST_S = 7 * 86400.0


def node_name(value: str) -> str:
    """The name of a machine; ValueError."""
    if not _NAME.fullmatch(value):
        raise ValueError(
            f"{quoted(value)} is not the name of a machine; use letters, digits, ., _"
            " and -, such as lab2"
        )
    return value


def _expiry(value: float) -> float:
    if not 0 < value <= _MOST_S:
        raise ValueError(f"is {value:g} s; give a time from 1 s to 7d, such as 1h")
    return value


NodeName = Annotated[str, AfterValidator(node_name)]


class NewInvitation(StrictModel):
    """An invitation to be made. Without `name`, the machine has that of its host."""

    name: NodeName | None = None
    expires_in_s: Annotated[float, AfterValidator(_expiry)] = 3600.0


class Invitation(BaseModel):
    """An invitation: one machine may join with its `code`, which is shown only here.

    `url` is where it dials; `expires_at` is in UTC seconds.
    """

    id: str
    name: str | None
    url: str
    code: str
    expires_at: float

    @property
    def command(self) -> str:
        """What to type on the other machine."""
        return f"gpuyard join {self.url} {self.code}"


class InvitationState(StrEnum):
    """What has become of an invitation."""

    OPEN = "open"
    USED = "used"
    OVER = "over"
    """It has expired, or was revoked."""


class KnownInvitation(BaseModel):
    """An invitation, without its code. `name` is that of the machine which has used it,
    if one has; `used_from` is the address from which. Times are in UTC seconds.
    """

    id: str
    name: str | None
    state: InvitationState
    expires_at: float
    used_at: float | None
    used_from: str | None


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine that has joined, and the addresses of both ends of its connection."""

    node_id: str
    address: str
    server_address: str


class JoinRequest(StrictModel):
    """What a machine says to join. `csr` is its certificate request, in PEM."""

    secret: str = Field(max_length=200)
    csr: str = Field(max_length=10_000)
    host: str = Field(max_length=300)
    version: str = Field(max_length=100)


class JoinAnswer(BaseModel):
    """What a machine gets: who it is, its certificate, and the port where its agent
    dials.
    """

    node_id: str
    name: str
    certificate: str
    port: int


class JoinRefusal(BaseModel):
    """Why a machine may not join, for people."""

    refused: str


class TendedNode(BaseModel):
    """A node after what was asked. Of a drain: the ids of the jobs that were asked to
    move, and of those that are left to end there.
    """

    id: str
    name: str
    state: str
    cordoned: bool
    moved: list[str] = []
    left: list[str] = []


def code_parts(code: str) -> tuple[str, str]:
    """The fingerprint of the instance's authority, and the secret; InvalidInputError
    if it is no code of an invitation.
    """
    found = _CODE.fullmatch(code)
    if found is None:
        raise InvalidInputError.of(
            "CODE",
            "is no code of an invitation",
            "copy the whole line that `gpuyard nodes invite` prints",
        )
    return found[1], found[2]


def expiry_s(text: str) -> float:
    """How long an invitation is good; InvalidInputError."""
    try:
        return _expiry(seconds(text))
    except ValueError as error:
        raise InvalidInputError.of("--expires", str(error), "such as 1h") from None


def work_together(one: str, other: str) -> bool:
    """Whether agent and server of these versions work together: they are at most one
    minor version apart. What is no version is a version in the making.
    """
    mine = _minor(one)
    theirs = _minor(other)
    if mine is None or theirs is None:
        return True
    return mine[0] == theirs[0] and abs(mine[1] - theirs[1]) <= 1


def _minor(version: str) -> tuple[int, int] | None:
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else None
