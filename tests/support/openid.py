"""A real OpenID provider in a thread: the package oidc-provider-mock, which serves
discovery, keys, a page to sign in, codes and signed tokens.
"""

import re
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin

import httpx

from gpuyard.server.sign_in.cookies import Cookies
from tests.support.instance import TestInstance


@dataclass
class Provider:
    """A provider at `issuer`. A person is known there by a subject."""

    issuer: str

    def settings(self, **more: Any) -> dict[str, Any]:
        """What an instance needs to know of it."""
        return {"issuer": self.issuer, "client_id": "gpuyard", **more}

    def know(self, subject: str, **claims: Any) -> None:
        """There is a person, of whom these claims are said."""
        put = httpx.put(f"{self.issuer}/users/{subject}", json=claims)
        put.raise_for_status()


@contextmanager
def openid_provider() -> Generator[Provider]:
    """A provider, for as long as a test needs it."""
    with warnings.catch_warnings():
        # It warns of a library that it uses itself.
        warnings.simplefilter("ignore")
        import oidc_provider_mock
    with oidc_provider_mock.run_server_in_thread() as server:
        yield Provider(f"http://localhost:{server.server_port}")


class Visitor:
    """A browser without a window or scripts, that signs in as a subject."""

    def __init__(self, instance: TestInstance) -> None:
        self.url = instance.address().url
        self.cookies = Cookies(self.url)
        self.web = httpx.Client(base_url=self.url)

    def begin(self, next_path: str = "/auth") -> str:
        """Where the server sends the browser to sign in."""
        answer = self.web.get("/auth/login", params={"next": next_path})
        assert answer.status_code == 303, answer.text
        return answer.headers["location"]

    def at_provider(self, address: str, subject: str) -> str:
        """Sign in there; where the provider sends the browser back to."""
        answer = httpx.post(address, data={"sub": subject})
        assert answer.status_code == 302, answer.text
        return urljoin(address, answer.headers["location"])

    def sign_in(self, subject: str, next_path: str = "/auth") -> httpx.Response:
        """All of it; the answer of the server at the end."""
        return self.web.get(self.at_provider(self.begin(next_path), subject))

    def post(self, path: str, **form: str) -> httpx.Response:
        """Send a form of the server's own page."""
        return self.web.post(path, data=form, headers={"Origin": self.url})

    def signed_in_as(self) -> str | None:
        """Whom the page of the server names."""
        found = re.search(r"You are <b>([^<]+)</b>", self.web.get("/auth").text)
        return found[1] if found else None
