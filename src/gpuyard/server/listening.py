"""The sockets at which a server listens: for all with the token, for the members of a
group, and for workers under accounts.
"""

import json
import socket
from pathlib import Path
from urllib.parse import urlsplit

from gpuyard.config.accounts import make_passable
from gpuyard.config.settings import Settings
from gpuyard.config.sharing import SharedSettings
from gpuyard.config.sockets import listening_socket, socket_of_group
from gpuyard.domain.errors import InvalidInputError

# So many connections wait until they are accepted.
BACKLOG = 1024


def listen(settings: Settings, announced: Path) -> socket.socket:
    """The listening socket; loopback only, because the embedded server speaks plain
    HTTP.

    With port 0 it is at the port of the server before, if that was killed and its file
    `announced` still names one: the pages that are open ask there. Else it is at a free
    port.
    """
    refuse_other_hosts(settings)
    host = settings.server.host
    port = settings.server.port
    if port == 0 and (former := _port_in(announced)):
        try:
            return _bound(host, former)
        except OSError:
            pass  # Another program has it now.
    try:
        return _bound(host, port)
    except OSError as error:
        remedy = "choose another, or 0 for a free one"
        raise InvalidInputError.of(
            "server.port", f"{port} cannot be used: {error.strerror}", remedy
        ) from None


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _port_in(announced: Path) -> int | None:
    """The port in this `server.json`; None if there is none."""
    try:
        return urlsplit(str(json.loads(announced.read_bytes())["url"])).port
    except (OSError, ValueError, KeyError, TypeError):
        return None


def listen_for_group(shared: SharedSettings) -> socket.socket | None:
    """The socket for the members of a group; None if there is no such group."""
    if shared.socket is None or shared.group is None:
        return None
    try:
        return socket_of_group(shared.socket, shared.group, BACKLOG)
    except KeyError:
        raise InvalidInputError.of(
            "shared.group",
            f"is {shared.group!r}, which is no group of this machine",
            f"make it with `groupadd --system {shared.group}`",
        ) from None
    except OSError as error:
        raise InvalidInputError.of(
            "shared.socket",
            f"{shared.socket} cannot be used: {error.strerror}",
            "name one in a folder of the server's account; the account must be root or"
            " in the group",
        ) from None


def listen_for_workers(path: Path) -> socket.socket:
    """The socket for workers under accounts, which may not enter the home. Anybody may
    open it; a worker shows its token there, and nobody is believed without one.
    """
    make_passable(path.parent)
    try:
        bound = listening_socket(path, BACKLOG)
        path.chmod(0o666)
    except OSError as error:
        raise InvalidInputError.of(
            "node.accounts_folder",
            f"{path.parent} cannot be used: {error.strerror}",
            "name a folder such as /var/lib/gpuyard",
        ) from None
    return bound


def refuse_other_hosts(settings: Settings) -> None:
    """InvalidInputError when the settings name an address of another network."""
    host = settings.server.host
    if host not in ("127.0.0.1", "::1", "localhost"):
        raise InvalidInputError.of(
            "server.host",
            f"is {host!r}",
            "use 127.0.0.1: this server speaks plain HTTP",
        )


def url_of(listener: socket.socket) -> str:
    """The URL at which it is reached."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
