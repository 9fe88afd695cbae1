"""What a provider may answer, rightly and wrongly: a server that signs what it is told
to, with keys that change.
"""

import asyncio
import hmac
import json
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from joserfc import jws, jwt
from joserfc.jwk import OctKey, RSAKey

from gpuyard.config.sign_in import OpenIdSettings
from gpuyard.domain.errors import UnauthorizedError
from gpuyard.server.sign_in.begun import Begun
from gpuyard.server.sign_in.provider import BadProviderError, OpenIdProvider

CLIENT = "gpuyard"
NOW = 1_700_000_000.0
BEGUN = Begun("state", "nonce", "verifier")


def new_key(name: str) -> RSAKey:
    return RSAKey.generate_key(2048, {"kid": name, "use": "sig", "alg": "RS256"})


FIRST_KEY = new_key("first")
SECOND_KEY = new_key("second")


@dataclass
class Faults:
    """What the provider answers: the token, the keys, and pages in place of its own."""

    issuer: str = ""
    token: str | None = None
    key: RSAKey = field(default_factory=lambda: FIRST_KEY)
    pages: dict[str, Any] = field(default_factory=dict[str, Any])
    hang: threading.Event | None = None
    asked: list[str] = field(default_factory=list[str])

    def page(self, path: str) -> tuple[int, Any]:
        if path in self.pages:
            return self.pages[path]
        if path == "/.well-known/openid-configuration":
            return 200, {
                "issuer": self.issuer,
                "authorization_endpoint": f"{self.issuer}/authorize",
                "token_endpoint": f"{self.issuer}/token",
                "jwks_uri": f"{self.issuer}/keys",
                "userinfo_endpoint": f"{self.issuer}/userinfo",
            }
        if path == "/keys":
            return 200, {"keys": [self.key.as_dict(private=False)]}
        return 200, {"access_token": "of-access", "id_token": self.token}

    def claims(self, **more: Any) -> dict[str, Any]:
        """Of a token that is right, but for `more`."""
        claims = {
            "iss": self.issuer,
            "sub": "subject",
            "aud": CLIENT,
            "iat": NOW,
            "exp": NOW + 300,
            "nonce": BEGUN.nonce,
            "preferred_username": "ana",
            **more,
        }
        return {name: value for name, value in claims.items() if value is not None}

    def signed(self, key: RSAKey | None = None, **more: Any) -> str:
        signing = key or self.key
        header = {"alg": "RS256", "kid": signing.kid}
        return jwt.encode(header, self.claims(**more), signing)


@pytest.fixture
def faults() -> Generator[Faults]:
    with provider() as made:
        yield made


@contextmanager
def provider() -> Generator[Faults]:
    faults = Faults()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            faults.asked.append(self.path)
            if faults.hang:
                faults.hang.wait(30)
            size = int(self.headers.get("Content-Length") or 0)
            self.rfile.read(size)
            status, body = faults.page(self.path)
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET  # noqa: N815  (its name there)

        def log_message(self, format: str, *_more: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    faults.issuer = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield faults
    finally:
        if faults.hang:
            faults.hang.set()
        server.shutdown()
        server.server_close()
        thread.join()


def claims_of(faults: Faults, *tokens: str, **settings: Any) -> Any:
    """What we believe of the last of these tokens, given one after another."""
    given = OpenIdSettings(issuer=faults.issuer, client_id=CLIENT, **settings)

    async def no_secret() -> None:
        return None

    async def ask() -> Any:
        asked = OpenIdProvider(given, "http://us/auth/callback", no_secret, lambda: NOW)
        claims = None
        for token in tokens:
            faults.token = token
            claims = await asked.claims("code", BEGUN)
        return claims

    return asyncio.run(ask())


def test_what_the_provider_has_signed_is_believed(faults: Faults) -> None:
    assert claims_of(faults, faults.signed())["preferred_username"] == "ana"
    ours_and_theirs = faults.signed(aud=[CLIENT, "other"], azp=CLIENT)
    assert claims_of(faults, ours_and_theirs)["sub"] == "subject"
    # Its clock may be a little off.
    assert claims_of(faults, faults.signed(iat=NOW + 50))
    assert claims_of(faults, faults.signed(exp=NOW - 50))


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        ({"exp": NOW - 61}, "has expired; are the clocks"),
        ({"iat": NOW + 61}, "the claim 'iat'"),
        ({"nbf": NOW + 61}, "the claim 'nbf'"),
        ({"exp": None}, "the claim 'exp'"),
        ({"iss": "http://evil.example"}, "the claim 'iss'"),
        ({"aud": "other"}, "the claim 'aud'"),
        ({"aud": None}, "the claim 'aud'"),
        ({"aud": [CLIENT, "other"]}, "for another client"),
        ({"aud": [CLIENT, "other"], "azp": "other"}, "for another client"),
        ({"azp": "other"}, "for another client"),
        ({"sub": None}, "the claim 'sub'"),
        ({"sub": ""}, "the claim 'sub'"),
        ({"sub": 7}, "the claim 'sub'"),
        ({"nonce": None}, "of another sign-in"),
        ({"nonce": "other"}, "of another sign-in"),
    ],
)
def test_a_wrong_claim_is_refused(
    faults: Faults, wrong: dict[str, Any], fault: str
) -> None:
    with pytest.raises(UnauthorizedError, match=fault):
        claims_of(faults, faults.signed(**wrong))


def _unsigned(faults: Faults) -> str:
    registry = jws.JWSRegistry(algorithms=["none"])
    key = OctKey.import_key("unused-but-long-enough-to-be-one")
    content = json.dumps(faults.claims())
    return jws.serialize_compact({"alg": "none"}, content, key, registry=registry)


def _signed_with_the_public_key(faults: Faults) -> str:
    """As by those who take the provider's public key for a secret."""
    header = {"alg": "HS256", "kid": faults.key.kid}
    parts = [json.dumps(part).encode() for part in (header, faults.claims())]
    text = b".".join(urlsafe_b64encode(part).rstrip(b"=") for part in parts)
    secret = faults.key.as_pem(private=False)
    signature = urlsafe_b64encode(hmac.digest(secret, text, "sha256")).rstrip(b"=")
    return f"{text.decode()}.{signature.decode()}"


def _forged(faults: Faults) -> str:
    """With the right name of a key, and the wrong key."""
    key = RSAKey.import_key(SECOND_KEY.as_dict(private=True))
    header = {"alg": "RS256", "kid": faults.key.kid}
    return jwt.encode(header, faults.claims(), key)


def _changed(faults: Faults) -> str:
    head, _, signature = faults.signed().split(".")
    _, content, _ = faults.signed(sub="admin").split(".")
    return f"{head}.{content}.{signature}"


def _nonsense(_faults: Faults) -> str:
    return "a.b.c"


@pytest.mark.filterwarnings("ignore:JWS algorithm:Warning")
@pytest.mark.parametrize(
    "forge",
    [_unsigned, _signed_with_the_public_key, _forged, _changed, _nonsense],
)
def test_what_the_provider_has_not_signed_is_refused(
    faults: Faults, forge: Any
) -> None:
    with pytest.raises(UnauthorizedError, match="not signed by the provider"):
        claims_of(faults, forge(faults))


def test_keys_are_asked_for_again_when_they_change(faults: Faults) -> None:
    old = faults.signed()
    assert claims_of(faults, old, old)
    assert faults.asked.count("/keys") == 1
    faults.key = SECOND_KEY
    assert claims_of(faults, faults.signed())
    # Within one server: the old key first, then the new one.
    faults.key = FIRST_KEY
    faults.asked.clear()

    async def rotate() -> None:
        given = OpenIdSettings(issuer=faults.issuer, client_id=CLIENT)

        async def no_secret() -> None:
            return None

        asked = OpenIdProvider(given, "http://us", no_secret, lambda: NOW)
        faults.token = faults.signed()
        await asked.claims("code", BEGUN)
        faults.key = SECOND_KEY
        faults.token = faults.signed()
        await asked.claims("code", BEGUN)
        faults.token = old
        with pytest.raises(UnauthorizedError, match="not signed"):
            await asked.claims("code", BEGUN)

    asyncio.run(rotate())
    assert faults.asked.count("/.well-known/openid-configuration") == 1


_DISCOVERY = "/.well-known/openid-configuration"
_BAD_ANSWERS: list[tuple[str, tuple[int, Any], str]] = [
    (_DISCOVERY, (404, {}), "answers 404"),
    (_DISCOVERY, (200, {"issuer": "x"}), "calls itself"),
    (_DISCOVERY, (200, b"<html>"), "200 without JSON"),
    (_DISCOVERY, (302, b""), "302 without JSON"),
    (_DISCOVERY, (200, b"[" * 90_000), "without JSON"),
    (_DISCOVERY, (200, b" " * 2_000_000), "too long"),
    ("/keys", (500, {}), "shows no keys"),
    ("/keys", (200, {"keys": [{"kty": "oct", "k": "AAAA"}]}), "no key that we can"),
]


@pytest.mark.parametrize(("path", "answer", "fault"), _BAD_ANSWERS)
def test_a_provider_that_is_none_is_told(
    faults: Faults, path: str, answer: tuple[int, Any], fault: str
) -> None:
    token = faults.signed()
    faults.pages[path] = answer
    with pytest.raises(BadProviderError, match=fault):
        claims_of(faults, token)


def test_a_code_that_is_not_taken_is_told_without_its_words(faults: Faults) -> None:
    faults.pages["/token"] = (400, {"error": "<script>"})
    with pytest.raises(UnauthorizedError, match="does not take the code") as caught:
        claims_of(faults, "none")
    assert "script" not in str(caught.value)


def test_a_provider_that_is_away_or_slow_is_told(faults: Faults) -> None:
    faults.hang = threading.Event()
    began = time.monotonic()
    with pytest.raises(BadProviderError, match="does not answer in time"):
        claims_of(faults, "none", timeout_s=0.2)
    assert time.monotonic() - began < 20
    faults.hang.set()
    faults.issuer = "http://127.0.0.1:9"
    with pytest.raises(BadProviderError, match="does not answer at all"):
        claims_of(faults, "none")


def test_what_the_token_does_not_say_is_asked_of_the_provider(faults: Faults) -> None:
    token = faults.signed(preferred_username=None)
    more = {"sub": "subject", "preferred_username": "ana", "groups": ["g"]}
    faults.pages["/userinfo"] = (200, more)
    assert claims_of(faults, token)["preferred_username"] == "ana"
    faults.pages["/userinfo"] = (200, {**more, "sub": "another"})
    with pytest.raises(UnauthorizedError, match="of another person"):
        claims_of(faults, token)
