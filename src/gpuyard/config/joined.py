"""Of a machine that has joined an instance: where the server is, and the certificate by
which its agent is known there. All of it is in the folder `joined` of its home, which
only the agent's user reads.
"""

import json
import os
import ssl
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpuyard.config.paths import Home
from gpuyard.config.sockets import keep_alive

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

_OPEN_S = 10.0
_CLOSE_S = 1.0


@dataclass(frozen=True, slots=True)
class Membership:
    """Where the server is, and who this machine is there."""

    host: str
    port: int
    node_id: str
    name: str


@dataclass(frozen=True, slots=True)
class JoinedServer:
    """The server of a machine that has joined, with the `folder` of its
    certificate. `server_name` is the name in that of the server.
    """

    membership: Membership
    folder: Path
    server_name: str

    @property
    def url(self) -> str:
        """Where the agent dials."""
        host = self.membership.host
        shown = f"[{host}]" if ":" in host else host
        return f"wss://{shown}:{self.membership.port}"

    def context(self) -> ssl.SSLContext:
        """TLS with our certificate, to whom the instance's authority has signed for.

        OSError when a file is missing or is no certificate.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_verify_locations(self.folder / "authority.pem")
        context.load_cert_chain(self.folder / "certificate.pem")
        return context


def read_membership(home: Home) -> Membership | None:
    """What `gpuyard join` has written; None if the machine has not joined."""
    try:
        body = json.loads((home.membership / "server.json").read_text())
        return Membership(
            str(body["host"]), int(body["port"]), str(body["node_id"]), body["name"]
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_membership(
    home: Home, membership: Membership, *, authority: str, certificate: str
) -> None:
    """Write what a machine has got. `certificate` is followed by its key, both in PEM.

    The file that names the server is written last: without it nothing has joined.
    """
    home.membership.mkdir(mode=0o700, exist_ok=True)
    home.node.mkdir(mode=0o700, parents=True, exist_ok=True)
    _write(home.membership / "authority.pem", authority)
    _write(home.membership / "certificate.pem", certificate)
    _write(home.node / "id", membership.node_id)
    _write(home.membership / "server.json", json.dumps(asdict(membership)))


def _write(path: Path, text: str) -> None:
    draft = path.with_name(f"{path.name}.new")
    draft.unlink(missing_ok=True)
    with os.fdopen(
        os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w"
    ) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)


async def open_agent_websocket(server: JoinedServer) -> "ClientConnection":
    """A WebSocket to the server's door for agents; OSError."""
    from websockets.asyncio.client import connect
    from websockets.exceptions import WebSocketException

    try:
        connection = await connect(
            f"{server.url}/api/v1/agent",
            max_size=None,
            compression=None,
            ping_interval=None,
            open_timeout=_OPEN_S,
            close_timeout=_CLOSE_S,
            proxy=None,
            ssl=server.context(),
            server_hostname=server.server_name,
        )
    except (WebSocketException, TimeoutError) as error:
        raise ConnectionRefusedError(f"{server.url}: {error}") from None
    keep_alive(connection.transport.get_extra_info("socket"))
    return connection
