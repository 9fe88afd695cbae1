"""Signing in: what a provider says of a person, and how a command gets its token."""

from dataclasses import dataclass

from pydantic import BaseModel

from gpuyard.domain.spec_values import Line
from gpuyard.domain.strict_model import StrictModel
from gpuyard.domain.users import Role


@dataclass(frozen=True, slots=True)
class Person:
    """Someone whom a provider has signed in. `issuer` and `subject` say who it is, for
    ever; `name` is what it is called now. `role` is that of its groups, if they give
    one; `default_role` is for who has none. `email` is its address, if the provider has
    verified that.
    """

    issuer: str
    subject: str
    name: str
    role: Role | None = None
    default_role: Role | None = None
    email: str | None = None


class SignInWays(BaseModel):
    """How one can sign in: with a token always; with `openid` in a browser, at the
    provider `issuer`.
    """

    token: bool = True
    openid: bool = False
    issuer: str | None = None


class DeviceRequest(StrictModel):
    """A command asks to be signed in through a browser. `host`: the name of its
    machine, which the person is shown.
    """

    host: Line = ""


class DeviceCode(BaseModel):
    """What the command shows, and what it asks with (RFC 8628): `device_code` is its
    own; the person enters `user_code` at `verification_uri`.
    """

    device_code: str
    user_code: str
    verification_uri: str
    verification_uri_complete: str
    expires_in: int
    interval: int


class DeviceToken(BaseModel):
    """The token of a command that was signed in; `expires_in` is in seconds."""

    access_token: str
    token_type: str = "Bearer"
    expires_in: int | None = None
