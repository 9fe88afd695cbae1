"""The OpenID provider: its addresses and keys, and what it says of who has signed in.

This follows OpenID Connect Core and Discovery: the authorization code flow with PKCE.
Nothing that comes from the provider is believed before its signature was checked with
the provider's own keys, by an algorithm with a public key.
"""

import asyncio
import json
import secrets
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast
from urllib.parse import quote, urlencode, urlsplit

import httpx
import structlog

from gpuyard.config.dialling import is_loopback, tls_context
from gpuyard.config.sign_in import OpenIdSettings, is_safe_origin
from gpuyard.domain.errors import (
    GpuyardError,
    InvalidInputError,
    UnauthorizedError,
    UnreachableError,
)
from gpuyard.server.sign_in.begun import Begun
from gpuyard.server.sign_in.claims import Claims, wanted_claims

log = structlog.get_logger(__name__)
# Without `none`, and without those where a client's secret is the key.
_ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA", "Ed25519"),
)
_DISCOVERY = "/.well-known/openid-configuration"
_MOST_BYTES = 1 << 20
_OK = 200
# For so long it is not asked again where its pages are.
_KEEP_S = 3600.0
_FAILURE_S = 3.0
_ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")


class BadProviderError(UnreachableError):
    """The OpenID provider does not answer as one does."""

    code = "bad_provider"


class OpenIdProvider:
    """One provider. `redirect_uri` is where it sends browsers back to; `secret` gives
    the client's secret, if it has one.
    """

    def __init__(
        self,
        settings: OpenIdSettings,
        redirect_uri: str,
        secret: Callable[[], Awaitable[str | None]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._redirect_uri = redirect_uri
        self._secret = secret
        self._clock = clock
        self._metadata: Mapping[str, Any] = {}
        self._read_at = float("-inf")
        self._discovering = asyncio.Lock()
        self._failure: BadProviderError | None = None
        self._failed_at = float("-inf")
        self._keys: Any = None
        self._client: httpx.AsyncClient | None = None

    async def address(self, begun: Begun) -> str:
        """Where a browser goes to sign in."""
        metadata = await self._discover()
        fields = {
            "response_type": "code",
            "client_id": self._settings.client_id,
            "redirect_uri": self._redirect_uri,
            "scope": " ".join(self._settings.scopes),
            "state": begun.state,
            "nonce": begun.nonce,
            "code_challenge": begun.challenge,
            "code_challenge_method": "S256",
        }
        endpoint = str(metadata["authorization_endpoint"])
        separator = "&" if "?" in endpoint else "?"
        return f"{endpoint}{separator}{urlencode(fields)}"

    async def check_issuer(self, issuer: str | None) -> None:
        """UnauthorizedError if the answer is that of another provider (RFC 9207)."""
        metadata = await self._discover()
        says = metadata.get("authorization_response_iss_parameter_supported") is True
        if issuer != self._settings.issuer and (issuer is not None or says):
            raise _untrusted("the answer is that of another provider")

    async def claims(self, code: str, begun: Begun) -> Claims:
        """What the provider says of the person for whom it gave `code`.
        UnauthorizedError if it does not say so credibly; BadProviderError.
        """
        metadata = await self._discover()
        answer = await self._exchange(str(metadata["token_endpoint"]), code, begun)
        token = answer.get("id_token")
        if not isinstance(token, str):
            raise _untrusted("the provider gave no ID token")
        claims = await self._checked(token, begun.nonce)
        if wanted_claims(self._settings, claims):
            return claims
        return {**await self._userinfo(metadata, answer, claims), **claims}

    # --- tokens ---

    async def _exchange(self, url: str, code: str, begun: Begun) -> Mapping[str, Any]:
        fields = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._redirect_uri,
            "code_verifier": begun.verifier,
        }
        client_id = self._settings.client_id
        secret = await self._secret()
        methods = (await self._discover()).get("token_endpoint_auth_methods_supported")
        auth: httpx.BasicAuth | None = None
        if secret is None:
            fields["client_id"] = client_id
        elif isinstance(methods, list) and "client_secret_basic" not in methods:
            fields |= {"client_id": client_id, "client_secret": secret}
        else:
            auth = httpx.BasicAuth(quote(client_id, safe=""), quote(secret, safe=""))
        status, answer = await self._ask("POST", url, data=fields, auth=auth)
        if status != _OK:
            # Its own words stay in the log: who signs in may be anybody.
            why = str(answer.get("error", status))[:80]
            log.warning("the provider gives no token", why=why)
            raise _untrusted("the provider does not take the code of this sign-in")
        return answer

    async def _checked(self, token: str, nonce: str) -> Claims:
        """The claims of an ID token. UnauthorizedError unless it is the provider's,
        for us, for this sign-in, and good now.
        """
        # Late: a server without a provider does without.
        from joserfc import jwt
        from joserfc.errors import BadSignatureError, InvalidKeyIdError, JoseError

        try:
            keys = await self._provider_keys()
            try:
                decoded = jwt.decode(token, keys, algorithms=_ALGORITHMS)
            except (InvalidKeyIdError, BadSignatureError):
                # It has a new key since.
                keys = await self._provider_keys(anew=True)
                decoded = jwt.decode(token, keys, algorithms=_ALGORITHMS)
            claims = decoded.claims
            registry = jwt.JWTClaimsRegistry(
                now=int(self._clock()),
                leeway=int(self._settings.leeway_s),
                iss={"essential": True, "value": self._settings.issuer},
                aud={"essential": True, "value": self._settings.client_id},
                sub={"essential": True},
                exp={"essential": True},
                iat={"essential": True},
            )
            registry.validate(claims)
        except GpuyardError:
            raise
        except (JoseError, ValueError, TypeError, KeyError, AttributeError) as error:
            log.warning("an ID token is refused", why=type(error).__name__)
            raise _untrusted(_fault_of(error)) from None
        self._check_parties(claims)
        given = claims.get("nonce")
        same = isinstance(given, str) and secrets.compare_digest(
            given.encode(), nonce.encode()
        )
        if not same:
            raise _untrusted("the ID token is that of another sign-in")
        return claims

    def _check_parties(self, claims: Claims) -> None:
        """UnauthorizedError if the token was made for others, too, and not at our
        wish.
        """
        ours = self._settings.client_id
        audience = claims["aud"]
        others = audience not in (ours, [ours])
        party = claims.get("azp")
        if party != ours and (others or party is not None):
            raise _untrusted("the ID token was made for another client")

    async def _userinfo(
        self, metadata: Mapping[str, Any], answer: Mapping[str, Any], claims: Claims
    ) -> Claims:
        """What the provider says besides, of the same person."""
        url = metadata.get("userinfo_endpoint")
        token = answer.get("access_token")
        if not isinstance(url, str) or not isinstance(token, str):
            return {}
        _check_endpoint("userinfo_endpoint", url)
        headers = {"Authorization": f"Bearer {token}"}
        status, more = await self._ask("GET", url, headers=headers)
        if status != _OK:
            raise BadProviderError(
                f"The OpenID provider {self._settings.issuer} does not say who you"
                f" are ({status}).",
                "Try again, or ask an administrator.",
            )
        if more.get("sub") != claims["sub"]:
            raise _untrusted("the provider speaks of another person")
        return more

    # --- its pages ---

    async def _discover(self) -> Mapping[str, Any]:
        """What the provider says of itself. Whoever asks in vain, asks not again for a
        moment: anybody may begin a sign-in.
        """
        async with self._discovering:
            if time.monotonic() - self._read_at < _KEEP_S:
                return self._metadata
            if time.monotonic() - self._failed_at < _FAILURE_S and self._failure:
                raise BadProviderError(self._failure.message, self._failure.remedy)
            try:
                return await self._read_metadata()
            except BadProviderError as error:
                self._failure = error
                self._failed_at = time.monotonic()
                raise

    async def _read_metadata(self) -> Mapping[str, Any]:
        issuer = self._settings.issuer
        url = issuer.rstrip("/") + _DISCOVERY
        status, found = await self._ask("GET", url)
        if status != _OK:
            raise self._bad(f"{_DISCOVERY} answers {status}")
        if found.get("issuer") != issuer:
            raise self._bad("it calls itself otherwise; write `issuer` as it does")
        for name in _ENDPOINTS:
            endpoint = found.get(name)
            if not isinstance(endpoint, str):
                raise self._bad(f"it names no {name}")
            _check_endpoint(name, endpoint)
        self._metadata = found
        self._read_at = time.monotonic()
        self._keys = None
        return found

    async def _provider_keys(self, *, anew: bool = False) -> Any:
        from joserfc.jwk import KeySet

        if self._keys is None or anew:
            metadata = await self._discover()
            status, found = await self._ask("GET", str(metadata["jwks_uri"]))
            given = found.get("keys")
            if status != _OK or not isinstance(given, list):
                raise self._bad("it shows no keys")
            keys = [key for key in cast("list[Any]", given) if _is_public(key)]
            if not keys:
                raise self._bad("it shows no key that we can use")
            self._keys = KeySet.import_key_set({"keys": keys})
        return self._keys

    async def _ask(
        self, method: str, url: str, **more: Any
    ) -> tuple[int, Mapping[str, Any]]:
        """One request: its status and the object in its answer. BadProviderError."""
        client = self._client = self._client or self._new_client()
        deadline = time.monotonic() + self._settings.timeout_s
        content = b""
        try:
            async with client.stream(method, url, **more) as answer:
                async for part in answer.aiter_bytes():
                    content += part
                    if len(content) > _MOST_BYTES:
                        raise self._bad("its answer is too long")
                    if time.monotonic() > deadline:
                        raise self._bad("it answers too slowly")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            log.warning("the OpenID provider does not answer", why=str(error))
            why = "in time" if isinstance(error, httpx.TimeoutException) else "at all"
            raise self._bad(f"it does not answer {why}") from None
        try:
            found = json.loads(content)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise self._bad(f"it answers {answer.status_code} without JSON")
        return answer.status_code, cast("dict[str, Any]", found)

    def _new_client(self) -> httpx.AsyncClient:
        file = self._settings.ca_file
        host = urlsplit(self._settings.issuer).hostname or ""
        try:
            verify: ssl.SSLContext | bool = tls_context(str(file)) if file else True
        except OSError as error:
            raise InvalidInputError.of(
                "sign_in.openid.ca_file",
                f"cannot be read: {error.strerror or error}",
                "name a file of certificates in PEM",
            ) from None
        return httpx.AsyncClient(
            verify=verify,
            timeout=self._settings.timeout_s,
            follow_redirects=False,
            trust_env=not is_loopback(host),
        )

    def _bad(self, why: str) -> BadProviderError:
        return BadProviderError(
            f"The OpenID provider {self._settings.issuer} cannot be used: {why}.",
            "Try again later, or ask an administrator: `[sign_in.openid]` in the"
            " settings of the server.",
        )


def _check_endpoint(name: str, url: str) -> None:
    # It may become a header.
    if not is_safe_origin(url) or not url.isascii() or not url.isprintable():
        raise BadProviderError(
            f"The OpenID provider's {name} is no address with TLS.",
            "Ask its administrator.",
        )


def _is_public(key: Any) -> bool:
    """Whether it is a public key for signatures: others are nobody's but a client's."""
    if not isinstance(key, dict):
        return False
    fields = cast("dict[str, Any]", key)
    kinds = ("RSA", "EC", "OKP")
    return fields.get("kty") in kinds and fields.get("use", "sig") == "sig"


def _fault_of(error: Exception) -> str:
    name = type(error).__name__
    if name == "ExpiredTokenError":
        return "the ID token has expired; are the clocks of both machines right?"
    if name in ("InvalidClaimError", "MissingClaimError"):
        claim = getattr(error, "claim", "")
        return f"the claim {claim!r} of the ID token is wrong"
    return "the ID token is not signed by the provider"


def _untrusted(why: str) -> UnauthorizedError:
    return UnauthorizedError(f"You are not signed in: {why}.", "Sign in again.")
