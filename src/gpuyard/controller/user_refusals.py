"""What is refused of changes to users and their tokens."""

from gpuyard.domain.errors import (
    ForbiddenError,
    InvalidInputError,
    NotFoundError,
    RefusedError,
)
from gpuyard.domain.users import Role, Token, TokenKind, User, UserChanges


def refuse_of_service_account(user: User, changes: UserChanges) -> None:
    """RefusedError for what makes no sense of a service account."""
    if user.project is None or (changes.role is None and not changes.awaits_sign_in):
        return
    raise RefusedError(
        f"{user.name} is a service account of the project {user.project}: it has its"
        " role there, and tokens only.",
        f"`gpuyard project member add {user.project} {user.name} --role ROLE` changes"
        " the role.",
    )


def unknown_user(name: str) -> NotFoundError:
    """The error for a name that no user has."""
    return NotFoundError(
        f"There is no user {name!r}.",
        f"`gpuyard user list` lists them; add one with `gpuyard user add {name}`.",
    )


def refuse_disabled(user: User) -> None:
    """ForbiddenError if this user is disabled."""
    if user.disabled:
        raise ForbiddenError(
            f"The user {user.name} is disabled.", "Ask an administrator."
        )


def refuse_role(role: Role, user: User, by: Role) -> None:
    """InvalidInputError if a token of this user may not have `role`; ForbiddenError if
    who asks, whose role is `by`, may not give it.
    """
    if not user.role.includes(role):
        raise InvalidInputError.of(
            "role",
            f"is {role}, and {user.name} is a {user.role}",
            f"a token is worth no more than its user; give {user.role} or less",
        )
    if not by.includes(role):
        raise ForbiddenError(
            f"This token is that of a {by}, and issues no {role}'s.",
            "Ask an administrator.",
        )


def refuse_rotation(old: Token, shown: Token | None, now: float) -> None:
    """RefusedError for a token that cannot be replaced; ForbiddenError if that would
    give whoever has `shown` more than that one is worth. `now`: UTC seconds.
    """
    if old.kind is TokenKind.SESSION:
        raise RefusedError(
            "This is the sign-in of a browser, which no program can use.",
            "Sign out and in again there.",
        )
    if old.expires_at is not None and old.expires_at <= now:
        raise RefusedError(
            f"The token {old.name!r} has expired, and so would its replacement.",
            f"Issue another: `gpuyard token new --user {old.user}`.",
        )
    if shown and shown.id != old.id and not _covers(shown, old):
        raise ForbiddenError(
            f"The token {old.name!r} may do more than the one that you show, or is good"
            " for longer.",
            "Rotate it with itself, or ask an administrator.",
        )


def _covers(one: Token, other: Token) -> bool:
    """Whether `one` is worth as much as `other`, and for as long."""
    if one.expires_at is not None and (
        other.expires_at is None or other.expires_at > one.expires_at
    ):
        return False
    if one.role is None:
        return True
    return other.role is not None and one.role.includes(other.role)
