"""What a provider's claims mean here: the name of a user, and its role."""

from collections.abc import Mapping
from typing import Any, cast

from gpuyard.config.sign_in import OpenIdSettings
from gpuyard.domain.emails import mail_address
from gpuyard.domain.errors import ForbiddenError, quoted
from gpuyard.domain.sign_in import Person
from gpuyard.domain.users import Role

Claims = Mapping[str, Any]
# What says a person's name, where the settings name no claim.
_NAME_CLAIMS = ("preferred_username", "email")


def wanted_claims(settings: OpenIdSettings, claims: Claims) -> bool:
    """Whether `claims` say all that is asked of them."""
    names = (settings.name_claim,) if settings.name_claim else _NAME_CLAIMS
    has_name = any(name in claims for name in names)
    return has_name and (not settings.roles or settings.groups_claim in claims)


def person_of(settings: OpenIdSettings, claims: Claims) -> Person:
    """Who has signed in. ForbiddenError if the claims give no name."""
    return Person(
        issuer=settings.issuer,
        subject=str(claims["sub"]),
        name=_name(settings, claims),
        role=_role(settings, claims),
        default_role=settings.default_role,
        email=_email(claims),
    )


def _email(claims: Claims) -> str | None:
    """The address that the provider has verified, if it says one."""
    value = claims.get("email")
    if claims.get("email_verified") is not True or not isinstance(value, str):
        return None
    try:
        return mail_address(value)
    except ValueError:
        return None


def _name(settings: OpenIdSettings, claims: Claims) -> str:
    given = (settings.name_claim,) if settings.name_claim else _NAME_CLAIMS
    claim = next((name for name in given if claims.get(name)), None)
    if claim is None:
        raise ForbiddenError(
            f"The provider does not say who you are: it gave no {' or '.join(given)}.",
            "Ask an administrator: `scopes` and `name_claim` in `[sign_in.openid]`.",
        )
    value = claims[claim]
    if not isinstance(value, str):
        raise ForbiddenError(
            f"The provider's claim {claim!r} is no text.",
            "Ask an administrator: `name_claim` in `[sign_in.openid]`.",
        )
    # Anybody may claim an address that nobody has looked at.
    if claim == "email" and claims.get("email_verified") is not True:
        raise ForbiddenError(
            "The provider has not verified your e-mail address.",
            "Verify it there, and sign in again.",
        )
    name, _, domain = value.lower().partition("@")
    if settings.email_domains and domain not in settings.email_domains:
        domains = ", ".join(settings.email_domains)
        raise ForbiddenError(
            f"The provider calls you {quoted(value)}; here people of {domains} sign"
            " in.",
            "Sign in there with another account.",
        )
    return name


def _role(settings: OpenIdSettings, claims: Claims) -> Role | None:
    """The highest role of its groups; None if they give none."""
    value = claims.get(settings.groups_claim)
    groups = {value} if isinstance(value, str) else _texts(value)
    roles = [role for group, role in settings.roles.items() if group in groups]
    order = list(Role)
    return max(roles, key=order.index, default=None)


def _texts(value: Any) -> set[str]:
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return {item for item in items if isinstance(item, str)}
