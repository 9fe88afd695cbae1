"""Users of an instance, their roles, and their tokens."""

import re
from enum import StrEnum
from typing import Annotated, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    StringConstraints,
    model_validator,
)

from gpuyard.domain.cost_keys import INSTANCE_OWNER
from gpuyard.domain.errors import quoted
from gpuyard.domain.jobspec import Name, Seconds
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
    """

    name: str
    role: Role
    disabled: bool = False
    created_at: float


class NewUser(StrictModel):
    """A user to be added."""

    name: UserName
    role: Role = Role.MEMBER


class UserChanges(StrictModel):
    """What is to differ."""

    role: Role | None = None
    disabled: bool | None = None

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if self.role is None and self.disabled is None:
            raise ValueError("changes nothing; give role or disabled")
        return self


class Token(BaseModel):
    """What may be known of a token: all but the token itself.

    It is worth as much as its user, or as its own `role` if that may do less. Times are
    UTC seconds; without `expires_at` it is good for ever.
    """

    id: str
    user: str
    name: str
    role: Role | None = None
    created_at: float
    expires_at: float | None = None
    used_at: float | None = None


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


class WhoAmI(BaseModel):
    """Who asks. Without `user`, it is the owner of the instance."""

    user: str | None
    role: Role
    token: Token | None = None
