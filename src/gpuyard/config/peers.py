"""`peers.json` in the node's folder: where this node's processes find the instance's
other servers. The home's own server writes it.

Standard library only.
"""

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from gpuyard.config.dialling import SYSTEM_TLS, Tls
from gpuyard.config.paths import Home


@dataclass(frozen=True, slots=True)
class Peers:
    """The servers' URLs, the token that they take, and how they prove themselves."""

    urls: tuple[str, ...] = ()
    token: str = ""
    tls: Tls = SYSTEM_TLS


def read_peers(home: Home) -> Peers:
    """What the file says; an instance with one server has none."""
    try:
        body: dict[str, Any] = json.loads(home.peers.read_text())
        found: dict[str, str | None] = body.get("tls") or {}
        tls = Tls(found.get("ca_file"), found.get("name"))
        return Peers(tuple(map(str, body["urls"])), str(body["token"]), tls)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Peers()


def write_peers(home: Home, peers: Peers) -> None:
    """Write the file, unless it says so already; it holds a token, so its mode is
    0600.
    """
    body = json.dumps(asdict(peers))
    with suppress(OSError):
        if home.peers.exists() and home.peers.read_text() == body:
            return
        draft = home.peers.with_suffix(".new")
        draft.unlink(missing_ok=True)
        with os.fdopen(
            os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w"
        ) as file:
            file.write(body)
        draft.rename(home.peers)
