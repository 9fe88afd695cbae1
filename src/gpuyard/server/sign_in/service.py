"""Signing in at this server: the provider, the browsers and the commands."""

import os
from typing import TYPE_CHECKING

from gpuyard.config.settings import Settings
from gpuyard.config.sign_in import is_safe_origin
from gpuyard.controller.controller import Controller
from gpuyard.controller.users import Identity
from gpuyard.domain.errors import ForbiddenError, NotFoundError
from gpuyard.domain.sign_in import SignInWays
from gpuyard.domain.users import IssuedToken, TokenKind, User
from gpuyard.server.sign_in.begun import Begun, Seal
from gpuyard.server.sign_in.claims import person_of
from gpuyard.server.sign_in.cookies import Cookies
from gpuyard.server.sign_in.devices import Devices, Grant
from gpuyard.server.sign_in.token_sessions import TokenSessions

if TYPE_CHECKING:
    from gpuyard.server.sign_in.provider import OpenIdProvider

_LONGEST_NAME = 64


class SignIn:
    """Sign-in of people, for a server that people reach at `url`. What `secret` seals,
    only this server opens.
    """

    def __init__(
        self,
        settings: Settings,
        controller: Controller,
        url: str,
        secret: str,
        sessions: TokenSessions,
    ) -> None:
        self.url = (settings.server.url or url).rstrip("/")
        self.cookies = Cookies(self.url)
        self.devices = Devices()
        self.settings = settings.sign_in
        self._controller = controller
        self._seal = Seal(secret)
        self.token_sessions = sessions
        self._provider = self._make_provider()

    def _make_provider(self) -> "OpenIdProvider | None":
        if self.settings.openid is None:
            return None
        # Late: a server without a provider needs no HTTP client.
        from gpuyard.server.sign_in.provider import OpenIdProvider

        return OpenIdProvider(
            self.settings.openid, f"{self.url}/auth/callback", self._client_secret
        )

    @property
    def ways(self) -> SignInWays:
        """How one can sign in."""
        openid = self.settings.openid
        if openid is None:
            return SignInWays()
        return SignInWays(openid=True, issuer=openid.issuer)

    @property
    def provider(self) -> "OpenIdProvider":
        """The provider; NotFoundError without one."""
        if self._provider is None:
            raise NotFoundError(
                "Nobody signs in here with a browser.",
                "Ask an administrator for a token, or for `[sign_in.openid]` in the"
                " settings of the server.",
            )
        return self._provider

    async def _client_secret(self) -> str | None:
        name = self.settings.openid and self.settings.openid.client_secret
        if not name:
            return None
        given = os.environ.get(name)
        return given or await self._controller.secrets.sources.value(name)

    # --- browsers ---

    async def begin(self, next_path: str) -> tuple[str, str]:
        """Where the browser goes to sign in, and its cookie meanwhile."""
        begun = Begun.new()
        address = await self.provider.address(begun)
        return address, self._seal.close(begun, next_path)

    async def finish(
        self, cookie: str | None, state: str, code: str, issuer: str | None
    ) -> tuple[User, str]:
        """Who has signed in, and where to go on. UnauthorizedError, ForbiddenError."""
        provider = self.provider
        begun, next_path = self._seal.open(cookie, state)
        await provider.check_issuer(issuer)
        claims = await provider.claims(code, begun)
        assert self.settings.openid
        person = person_of(self.settings.openid, claims)
        return await self._controller.sign_ins.admit(person), next_path

    async def open_session(self, user: str) -> IssuedToken:
        """The token of a browser, for its cookie."""
        lasts_s = self.settings.session_s
        return await self._controller.sign_ins.open(
            user, TokenKind.SESSION, "browser", lasts_s
        )

    def check_carries_tokens(self) -> None:
        """ForbiddenError if somebody on the way could read what a browser sends."""
        if not is_safe_origin(self.url):
            raise ForbiddenError(
                "Whoever listens on the way to this server could read your token.",
                f"Put a proxy with TLS before {self.url}, and name its https://…"
                " address as `url` in `[server]`.",
            )

    async def close_session(self, identity: Identity | None) -> None:
        """Sign a browser out."""
        if identity and identity.token:
            await self._controller.users.revoke_token(identity.token)

    # --- commands ---

    async def token_for(self, grant: Grant) -> IssuedToken:
        """The token of a command that somebody has signed in. ForbiddenError if that
        user is disabled meanwhile, or is somebody else.
        """
        assert grant.user
        user = self._controller.users.named(grant.user)
        if user is None or user.subject != grant.subject:
            raise ForbiddenError(
                f"Somebody else is {grant.user} now.", "Ask an administrator."
            )
        name = f"login at {grant.host or grant.address}"[:_LONGEST_NAME]
        lasts_s = self.settings.command_s
        return await self._controller.sign_ins.open(
            grant.user, TokenKind.COMMAND, name, lasts_s
        )
