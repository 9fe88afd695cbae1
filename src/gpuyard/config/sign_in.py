"""The settings of sign-in through an OpenID provider (see the guide on sign-in)."""

from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from gpuyard.config.dialling import is_loopback
from gpuyard.config.sections import DAY_S, Period, SettingsSection
from gpuyard.domain.secret_names import secret_name
from gpuyard.domain.users import Role


def is_safe_origin(url: str) -> bool:
    """Whether nobody on the way to `url` can read along: TLS, or this host."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme == "https":
        return host != ""
    return parts.scheme == "http" and is_loopback(host)


def _issuer(url: str) -> str:
    parts = urlsplit(url)
    if not is_safe_origin(url) or parts.query or parts.fragment or parts.username:
        raise ValueError(
            f"{url!r} is not the address of a provider; write it as the provider's"
            " discovery document does, such as https://id.example.org"
        )
    return url


ClaimName = Annotated[str, Field(min_length=1, max_length=200)]


class OpenIdSettings(SettingsSection):
    """The provider and what it says of people.

    `client_secret` is the name of an environment variable of the server, or of a
    secret. A user is called what `name_claim` says; unset, `preferred_username`, else
    `email`. What stands before an @ is the name, and with `email_domains` what stands
    behind must be one of these.

    `roles` gives the role for each group in `groups_claim`; the highest counts, at each
    sign-in. Who has none of these groups gets `default_role`; unset, only users who
    were added are admitted. `leeway_s`: so far the provider's clock may be off. It must
    answer within `timeout_s`. `ca_file` has its certificates, if the system has not.
    """

    issuer: Annotated[str, AfterValidator(_issuer)]
    client_id: Annotated[str, Field(min_length=1)]
    client_secret: Annotated[str, AfterValidator(secret_name)] | None = None
    scopes: tuple[str, ...] = ("openid", "profile", "email")
    name_claim: ClaimName | None = None
    email_domains: tuple[str, ...] = ()
    groups_claim: ClaimName = "groups"
    roles: dict[str, Role] = Field(default_factory=dict[str, Role])
    default_role: Role | None = None
    leeway_s: Annotated[float, Field(ge=0, le=600)] = 60.0
    timeout_s: Period = 10.0
    ca_file: Path | None = None


class SignInSettings(SettingsSection):
    """`url` is the address of this server in people's browsers, if that is not `url` in
    `[server]`. `session_s`: how long a browser stays signed in; `command_s`: a command
    that has signed in through one.
    """

    openid: OpenIdSettings | None = None
    url: str | None = None
    session_s: Period = DAY_S / 2
    command_s: Period = 30 * DAY_S

    @property
    def own_secrets(self) -> frozenset[str]:
        """Secrets that are the server's own: no job gets them."""
        name = self.openid.client_secret if self.openid else None
        return frozenset([name] if name else [])

    def check_reached_safely(self, host: str, server_url: str | None) -> None:
        """ValueError if people would sign in over a network without TLS. Where the
        server itself listens (`host`), it has none.
        """
        url = self.url or server_url
        is_safe = is_safe_origin(url) if url else is_loopback(host)
        if self.openid and not is_safe:
            raise ValueError(
                "@sign_in.url@is no address with TLS, and cookies of people who sign in"
                " could be read on the way; write the https://… of the proxy before"
                " this server"
            )
