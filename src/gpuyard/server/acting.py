"""Administrators act for other users: the header `Gpuyard-As`."""

import re
from collections.abc import Callable
from functools import partial

from starlette.types import Scope

from gpuyard.controller.access import Access
from gpuyard.controller.users import Identity
from gpuyard.domain.errors import ForbiddenError, InvalidInputError, quoted
from gpuyard.domain.users import is_user_name
from gpuyard.server.permissions import AGAIN_KEY, IDENTITY_KEY

HEADER = "Gpuyard-As"
_HEADER = HEADER.lower().encode()
# Whoever acts for a user gets no token of that user: it would outlive the act, and
# nobody would see it.
_NEVER = re.compile("(POST|DELETE) /api/v1/tokens([:/].*)?")


def acted_for(scope: Scope) -> str | None:
    """For whom a request is to count, if that is another user than who sends it.
    InvalidInputError.
    """
    given = [value for name, value in scope["headers"] if name == _HEADER]
    if not given:
        return None
    name = given[0].decode("latin-1").strip()
    if len(given) > 1 or not is_user_name(name):
        fault = "is there twice" if len(given) > 1 else f"is {quoted(name)}"
        raise InvalidInputError.of(HEADER, fault, "give one user, such as ana")
    return name


def act(scope: Scope, access: Access, sender: Identity, name: str, what: str) -> None:
    """Let the request `what` be one of the user `name`. ForbiddenError, NotFoundError.

    A stream is judged again as both: it ends when the one is no administrator any more,
    and when the other may not see it any more.
    """
    acting = access.act_for(sender, name)
    if _NEVER.fullmatch(what):
        raise ForbiddenError(
            "Nobody issues or revokes tokens while acting for another user.",
            f"Do it as yourself: `gpuyard token new --user {name}`.",
        )
    again: Callable[[], Identity | None] | None = scope.get(AGAIN_KEY)
    scope[AGAIN_KEY] = partial(_again, access, again or partial(_same, sender), name)
    scope[IDENTITY_KEY] = acting


def _same(sender: Identity) -> Identity:
    return sender


def _again(
    access: Access, again: Callable[[], Identity | None], name: str
) -> Identity | None:
    sender = again()
    return access.act_for(sender, name) if sender else None
