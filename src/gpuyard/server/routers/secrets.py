"""`/api/v1/secrets`: secrets by name. No route returns a value."""

from typing import Annotated, Any, cast

from fastapi import Body, Request
from pydantic import BaseModel

from gpuyard.domain.errors import ForbiddenError, InvalidInputError, NotFoundError
from gpuyard.domain.secret_facts import SecretFacts
from gpuyard.domain.secret_names import secret_name, stored_name
from gpuyard.server.api_router import api_router
from gpuyard.server.app_state import AppState
from gpuyard.server.callers import submitter_of
from gpuyard.server.dependencies import TheAppState
from gpuyard.server.permissions import changes_only_own, identity_of
from gpuyard.storage.secret_sources import MAX_VALUE_BYTES

router = api_router("/secrets", tag="secrets")


class SecretPage(BaseModel):
    """Every secret whose name is known."""

    items: list[SecretFacts]
    next: str | None = None


# Checked by `_checked`: a message of Pydantic's would show what was sent.
ValueBody = Annotated[Any, Body(examples=[{"value": "…"}])]


@router.get("")
async def list_secrets(request: Request, app_state: TheAppState) -> SecretPage:
    """The shared secrets and your own, as a maintainer all, by name: whose each is,
    when it was set, and when a job last got it.
    """
    listed = app_state.controller.secrets.listing()
    if changes_only_own(identity_of(request.scope)):
        user = submitter_of(request.scope)
        listed = [facts for facts in listed if facts.owner in (None, user)]
    return SecretPage(items=listed)


@router.put("/{name}")
async def set_secret(
    request: Request, app_state: TheAppState, name: str, body: ValueBody
) -> SecretFacts:
    """Set or replace a secret in the store, given as `{"value": …}`. It is yours, and
    only your jobs get it; as a maintainer, you may make it `shared`. Jobs get the new
    value when they start.
    """
    _check_name(name)
    fields = cast("dict[str, Any]", body) if isinstance(body, dict) else {}
    value = _checked(fields.get("value"))
    owner = _owner(request, shared=_flag(fields.get("shared", False)))
    store = app_state.controller.secrets.sources.store
    now = app_state.controller.core.clock()
    store.put(stored_name(name, owner), value, now)
    return _facts(app_state, name, owner)


@router.delete("/{name}")
async def remove_secret(
    request: Request,
    app_state: TheAppState,
    name: str,
    shared: bool = False,
    owner: str | None = None,
) -> SecretFacts:
    """Remove a secret of yours from the store; as a maintainer also one that is
    `shared`, or that of another `owner`. Answers with what it was.
    """
    _check_name(name)
    whose = _owner(request, shared=shared, other=owner)
    store = app_state.controller.secrets.sources.store
    if stored_name(name, whose) not in store.times():
        kind = f"secret of {whose}" if whose else "shared secret"
        raise NotFoundError(
            f"The store has no {kind} {name!r}.", "`gpuyard secret list` lists them."
        )
    facts = _facts(app_state, name, whose)
    store.remove(stored_name(name, whose))
    return facts


def _owner(request: Request, *, shared: bool, other: str | None = None) -> str | None:
    """Whose secret is meant. Those of the owner of the instance are shared.
    ForbiddenError, InvalidInputError.
    """
    if shared and other is not None:
        raise InvalidInputError.of(
            "owner", "is given, and so is shared", "a shared secret has no owner"
        )
    identity = identity_of(request.scope)
    user = submitter_of(request.scope)
    if not shared and other in (None, user):
        return user
    if changes_only_own(identity):
        raise ForbiddenError(
            f"A {identity.role} such as {identity.user} sets and removes only secrets"
            " of its own.",
            "Ask a maintainer.",
        )
    return other


def _facts(app_state: AppState, name: str, owner: str | None) -> SecretFacts:
    listing = app_state.controller.secrets.listing()
    return next(
        facts for facts in listing if (facts.name, facts.owner) == (name, owner)
    )


def _check_name(name: str) -> None:
    try:
        secret_name(name)
    except ValueError as error:
        fault, _, remedy = str(error).partition("; ")
        raise InvalidInputError.of("name", fault, remedy) from None


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidInputError.of("shared", "is neither true nor false", "send one")
    return value


def _checked(value: Any) -> str:
    if not isinstance(value, str):
        remedy = 'send {"value": "…"}'
        raise InvalidInputError.of("value", "is missing or no text", remedy)
    size = len(value.encode(errors="replace"))
    if not 1 <= size <= MAX_VALUE_BYTES:
        fault = f"has {size} bytes; a value has 1 to {MAX_VALUE_BYTES}"
        raise InvalidInputError.of("value", fault, "let the job read a file instead")
    has_surrogates = any("\ud800" <= letter <= "\udfff" for letter in value)
    if "\0" in value or has_surrogates:
        fault = "cannot be the value of a variable"
        raise InvalidInputError.of("value", fault, "send text without NUL bytes")
    return value
