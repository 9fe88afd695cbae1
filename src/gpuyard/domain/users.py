"""Users of an instance, their roles, and their tokens."""

import re
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)

from gpuyard.domain.cost_keys import INSTANCE_OWNER
from gpuyard.domain.errors import quoted
from gpuyard.domain.spec_values import Name, Seconds
from gpuyard.domain.strict_model import StrictModel

TOKEN_PREFIX = "gpuyard_"
"""What the tokens of users begin with. So people, and scanners of code, know them."""
# As Linux allows them for accounts, under which the jobs of users may run.
_USER_NAME = re.compile(r"[a-z_][a-z0-9_.-]{0,31}")


class Role(StrEnum):
    """What a user may do. Each role may do all that the one before it may."""

    VIEWER = "viewer"
    """Sees everything, and changes nothing."""
    MEMBER = "member"
    """Submits jobs, and changes its own."""
    MAINTAINER = "maintainer"
    """Changes the jobs of others, too, and GPUs, models and secrets."""
    ADMINISTRATOR = "administrator"
    """Does everything: users, nodes, backups, and the end of the server."""

    def includes(self, other: "Role") -> bool:
        """Whether this role may do all that `other` may."""
        order = list(Role)
        return order.index(self) >= order.index(other)


def is_user_name(value: str) -> bool:
    """Whether a user may have this name."""
    return value != INSTANCE_OWNER and _USER_NAME.fullmatch(value) is not None


def _user_name(value: str) -> str:
    if value == INSTANCE_OWNER:
        raise ValueError(
            f"{value!r} is what reports call the owner of the instance; use another"
            " name"
        )
    if not _USER_NAME.fullmatch(value):
        raise ValueError(
            f"{quoted(value)} is not the name of a user; use up to 32 small letters,"
            " digits, _, . and -, such as ana"
        )
    return value


UserName = Annotated[str, AfterValidator(_user_name)]
TokenName = Annotated[Name, StringConstraints(max_length=64)]


class User(BaseModel):
    """A user. One that is `disabled` is refused, and so are its tokens. `created_at` is
    in UTC seconds.

    Who signs in with OpenID Connect is known by `issuer` and `subject`. With
    `awaits_sign_in`, the next person whom the provider calls by this name becomes this
    user. `role_from_provider`: the role is that of a group at the provider. A service
    account is a user of one `project`: it starts nothing elsewhere, and has tokens
    only. `email` is the address that the provider has verified.
    """

    name: str
    role: Role
    disabled: bool = False
    created_at: float
    issuer: str | None = None
    subject: str | None = None
    awaits_sign_in: bool = False
    role_from_provider: bool = False
    project: str | None = None
    email: str | None = None

    @field_validator("awaits_sign_in", "role_from_provider", mode="before")
    @classmethod
    def _of_earlier_versions(cls, value: Any) -> Any:
        return False if value is None else value


class NewUser(StrictModel):
    """A user to be added. With `awaits_sign_in`, it signs in with OpenID Connect. With
    `project`, it is a service account of that project, and `role` its role there.
    """

    name: UserName
    role: Role = Role.MEMBER
    awaits_sign_in: bool = False
    project: Name | None = None

    @model_validator(mode="after")
    def _fits_its_project(self) -> Self:
        if self.project is None:
            return self
        if self.awaits_sign_in:
            raise ValueError(
                "@project@does not go with awaits_sign_in: a service account has tokens"
                " only; leave one of them out"
            )
        if self.role is Role.ADMINISTRATOR:
            raise ValueError(
                "@role@is administrator, which is a role in the whole instance; use"
                " viewer, member or maintainer"
            )
        return self


class UserChanges(StrictModel):
    """What is to differ. `awaits_sign_in`: whoever signed in as this user before does
    so no longer, and the next person of this name does (false: nobody).
    """

    role: Role | None = None
    disabled: bool | None = None
    awaits_sign_in: bool | None = None

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if self.role is None and self.disabled is None and self.awaits_sign_in is None:
            raise ValueError("changes nothing; give role, disabled or awaits_sign_in")
        return self


class TokenKind(StrEnum):
    """How a token came about, and where it counts."""

    TOKEN = "token"
    """Issued by somebody, for programs and commands."""
    COMMAND = "command"
    """Of a command that has signed in through a browser."""
    SESSION = "session"
    """Of a browser: it counts as a cookie, and nowhere else."""


class Token(BaseModel):
    """What may be known of a token: all but the token itself.

    It is worth as much as its user, or as its own `role` if that may do less. Times are
    UTC seconds; without `expires_at` it is good for ever.
    """

    id: str
    user: str
    name: str
    kind: TokenKind = TokenKind.TOKEN
    role: Role | None = None
    created_at: float
    expires_at: float | None = None
    used_at: float | None = None

    @field_validator("kind", mode="before")
    @classmethod
    def _of_earlier_versions(cls, value: Any) -> Any:
        return TokenKind.TOKEN if value is None else value


class NewToken(StrictModel):
    """A token to be issued. `user`: whose, by default that of who asks. It ends
    `expires_in_s` seconds from now; `role` makes it worth less than its user.
    """

    user: UserName | None = None
    name: TokenName = "token"
    role: Role | None = None
    expires_in_s: Seconds | None = Field(default=None)


class IssuedToken(Token):
    """A token that was just issued, with the token itself: it is shown once, and kept
    nowhere.
    """

    token: str


class Changes(StrEnum):
    """Whose things of a project somebody may change: cancel, resume, remove."""

    ALL = "all"
    OWN = "own"
    NONE = "none"


class ProjectRights(BaseModel):
    """What somebody may do in a project. `submits`: start something in it."""

    submits: bool = False
    changes: Changes = Changes.NONE


class WhoAmI(BaseModel):
    """Who asks. Without `user`, it is the owner of the instance. `address`: where other
    machines reach the server; None if nobody has set it. `projects`: the rights in each
    registered project that exists for them; `elsewhere`: those in all others.
    """

    user: str | None
    role: Role
    projects: dict[str, ProjectRights] = {}
    elsewhere: ProjectRights = ProjectRights()
    token: Token | None = None
    address: str | None = None
