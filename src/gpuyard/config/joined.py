"""Of a machine that has joined an instance: where the server is, and the certificate by
which its agent is known there. All of it is in the folder `joined` of its home, which
only the agent's user reads.
"""

import asyncio
import hashlib
import json
import os
import ssl
from dataclasses import asdict, dataclass
from pathlib import Path

from gpuyard.config.paths import Home
from gpuyard.config.sockets import keep_alive
from gpuyard.domain.errors import RefusedError

MACHINE_ID = Path("/etc/machine-id")
_OPEN_S = 10.0
_SHUTDOWN_S = 1.0


@dataclass(frozen=True, slots=True)
class Membership:
    """Where the server is, and who this machine is there. `machine` tells it from
    others; empty if nothing does.
    """

    host: str
    port: int
    node_id: str
    name: str
    machine: str = ""


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
        return f"https://{shown}:{self.membership.port}"

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
            str(body["host"]),
            int(body["port"]),
            str(body["node_id"]),
            body["name"],
            str(body.get("machine", "")),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def this_machine() -> str:
    """What tells this machine from others; empty if the system has no such id. Nobody
    learns the id itself.
    """
    try:
        machine_id = MACHINE_ID.read_bytes().strip()
    except OSError:
        return ""
    return hashlib.sha256(b"gpuyard" + machine_id).hexdigest() if machine_id else ""


def refuse_copied_home(home: Home, membership: Membership) -> None:
    """RefusedError if the home was copied from the machine that has joined."""
    here = this_machine()
    if membership.machine and here and membership.machine != here:
        raise RefusedError(
            f"{home.root} was copied from another machine, {membership.name}: what is"
            " in it is good on that one only.",
            f"Remove {home.root}, and invite this machine by itself: `gpuyard nodes"
            " invite`.",
        )


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


async def open_agent_streams(
    server: JoinedServer,
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to the server's door for agents; OSError."""
    membership = server.membership
    async with asyncio.timeout(_OPEN_S):
        reader, writer = await asyncio.open_connection(
            membership.host,
            membership.port,
            ssl=server.context(),
            server_hostname=server.server_name,
            ssl_shutdown_timeout=_SHUTDOWN_S,
        )
    keep_alive(writer.get_extra_info("socket"))
    return reader, writer
