"""`/api/v1/secrets`: secrets by name. No route returns a value."""

from typing import Annotated, Any, cast

from fastapi import APIRouter, Body, Request
from pydantic import BaseModel

from gpuyard.domain.errors import ForbiddenError, InvalidInputError, NotFoundError
from gpuyard.domain.secret_facts import SecretFacts
from gpuyard.domain.secret_names import secret_name
from gpuyard.server.dependencies import TheAppState
from gpuyard.server.permissions import changes_only_own, identity_of
from gpuyard.storage.secret_sources import (
    MAX_VALUE_BYTES,
    SecretMissingError,
    SecretSources,
)

router = APIRouter(prefix="/secrets", tags=["secrets"])


class SecretPage(BaseModel):
    """Every secret whose name is known."""

    items: list[SecretFacts]
    next: str | None = None


# Checked by `_checked`: a message of Pydantic's would show what was sent.
ValueBody = Annotated[Any, Body(examples=[{"value": "…"}])]


@router.get("")
async def list_secrets(app_state: TheAppState) -> SecretPage:
    """Every secret by name: when it was set, and when a job last got it."""
    return SecretPage(items=app_state.controller.secrets.sources.listing())


@router.put("/{name}")
async def set_secret(
    request: Request, app_state: TheAppState, name: str, body: ValueBody
) -> SecretFacts:
    """Set a secret in the store, given as `{"value": …}`, or, as a maintainer, replace
    one. Jobs get the new value when they start.
    """
    _check_name(name)
    sources = app_state.controller.secrets.sources
    await _check_may_set(request, sources, name)
    sources.store.put(name, _checked(body), app_state.controller.core.clock())
    return _facts(app_state, name)


@router.delete("/{name}")
async def remove_secret(app_state: TheAppState, name: str) -> SecretFacts:
    """Remove a secret from the store; answers with what it was."""
    _check_name(name)
    store = app_state.controller.secrets.sources.store
    if name not in store.times():
        raise NotFoundError(
            f"The store has no secret {name!r}.", "`gpuyard secret list` lists them."
        )
    facts = _facts(app_state, name)
    store.remove(name)
    return facts


async def _check_may_set(request: Request, sources: SecretSources, name: str) -> None:
    """ForbiddenError for who may change only its own, if any source has this secret: it
    is not kept whose it is, and the store comes before the others.
    """
    identity = identity_of(request.scope)
    if not changes_only_own(identity):
        return
    try:
        await sources.value(name)
    except SecretMissingError:
        return
    raise ForbiddenError(
        f"There is a secret {name!r} already; a {identity.role} such as"
        f" {identity.user} replaces none.",
        "Give yours another name, or ask a maintainer.",
    )


def _facts(app_state: TheAppState, name: str) -> SecretFacts:
    listing = app_state.controller.secrets.sources.listing()
    return next(facts for facts in listing if facts.name == name)


def _check_name(name: str) -> None:
    try:
        secret_name(name)
    except ValueError as error:
        fault, _, remedy = str(error).partition("; ")
        raise InvalidInputError.of("name", fault, remedy) from None


def _checked(body: Any) -> str:
    fields = cast("dict[str, Any]", body) if isinstance(body, dict) else {}
    value = fields.get("value")
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
