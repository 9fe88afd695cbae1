"""Messages over mutual TLS to the hub, which sends the seed."""

import json
import os
import socket
import ssl
import tempfile
import time
from pathlib import Path
from typing import Any, Optional, cast

from .messages import Message, line
from .order import OrderError, SolverOrder

# How long the hub may take to answer, and the allowance for the network.
TIMEOUT_S = 30.0
LEEWAY_S = 5.0
# How long the hub may leave unread what it is sent: it reads the files of a batch in
# turns, and others may take all of theirs.
SEND_S = 600.0
# The seed is sent when the slowest solver of the batch is ready, which may take this
# long.
READY_TIMEOUT_S = 300.0
# The hub's certificate has this name, whatever its address is.
HUB = "service"
_LONGEST_LINE = 65536


class HubConnectionError(Exception):
    """The hub cannot be reached, has a wrong certificate, or sends nonsense."""


class HubConnection:
    """A connection to the hub. Every method raises HubConnectionError."""

    piece_bytes = 1 << 18

    def __init__(self, order: SolverOrder) -> None:
        self._order_seed = order.seed
        stream = order.stream or {}
        for field in ("host", "port", "authority", "certificate", "key"):
            if field not in stream:
                raise OrderError(f"stream.{field}: is missing")
        self._wait_s = (
            float(stream.get("wait_s", READY_TIMEOUT_S + TIMEOUT_S)) + LEEWAY_S
        )
        self._socket = _connect(stream)
        self._socket.settimeout(SEND_S)
        self._reader = self._socket.makefile("rb")

    def send(self, message: Message) -> None:
        """Send a message."""
        try:
            self._socket.sendall(line(message))
        except OSError as error:
            raise HubConnectionError(
                f"the hub takes no more messages: {error}"
            ) from error

    def seed(self) -> int:
        """The seed in the order, or the one that the hub sends at the barrier."""
        if self._order_seed is not None:
            return self._order_seed
        return int(self._said("seed", int, self._wait_s))

    def salt(self) -> str:
        """What the hub sends for the hash; nothing if the order has the seed."""
        if self._order_seed is not None:
            return ""
        return str(self._said("salt", str, TIMEOUT_S + LEEWAY_S))

    def _said(self, what: str, kind: type, within_s: float) -> Any:
        """What the hub has to say next, in a message and a field of this name."""
        message = self._receive(within_s) or {}
        if message.get("type") != what or not isinstance(message.get(what), kind):
            raise HubConnectionError(
                f"the hub has ended the check before it sent the {what}"
            )
        return message[what]

    def close(self) -> None:
        """Wait until the hub has received everything, then disconnect."""
        try:
            self._receive(TIMEOUT_S + LEEWAY_S)
        except HubConnectionError:
            pass
        finally:
            self._reader.close()
            self._socket.close()

    def _receive(self, within_s: float) -> Optional[dict[str, Any]]:
        """The next message; None when the hub has disconnected."""
        self._socket.settimeout(within_s)
        try:
            said = self._reader.readline(_LONGEST_LINE)
        except OSError as error:
            raise HubConnectionError(f"nothing came from the hub: {error}") from error
        finally:
            self._socket.settimeout(SEND_S)
        if not said:
            return None
        try:
            message: Any = json.loads(said)
        except ValueError as error:
            raise HubConnectionError(f"the hub does not send JSON: {error}") from error
        if not isinstance(message, dict):
            raise HubConnectionError("the hub does not send JSON objects")
        return cast("dict[str, Any]", message)


def _connect(stream: dict[str, Any]) -> ssl.SSLSocket:
    """Connect, with retries: a hub may start a moment after its solvers."""
    context = _context(stream)
    deadline = time.monotonic() + TIMEOUT_S + LEEWAY_S
    pause_s = 0.1
    while True:
        plain: Optional[socket.socket] = None
        try:
            plain = socket.create_connection(
                (stream["host"], int(stream["port"])), TIMEOUT_S + LEEWAY_S
            )
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return context.wrap_socket(plain, server_hostname=HUB)
        except OSError as error:
            if plain is not None:
                plain.close()
            if isinstance(error, ssl.SSLCertVerificationError):
                raise HubConnectionError(
                    f"who answers at the hub's address is not the hub: {error}"
                ) from error
            if time.monotonic() + pause_s > deadline:
                raise HubConnectionError(
                    f"the hub at {stream['host']}:{stream['port']} cannot be reached:"
                    f" {error}"
                ) from error
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 5.0)


def _context(stream: dict[str, Any]) -> ssl.SSLContext:
    """Use this check's own certificate, and trust only the hub's authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # Python can load a key only from a file. Only we can read one that mkstemp made.
    handle, name = tempfile.mkstemp()
    try:
        with os.fdopen(handle, "w") as file:
            file.write(f"{stream['certificate']}\n{stream['key']}\n")
        context.load_cert_chain(name)
        context.load_verify_locations(cadata=stream["authority"])
    except (OSError, ValueError, TypeError) as error:
        raise OrderError(f"stream: its certificates cannot be read: {error}") from error
    finally:
        Path(name).unlink()
    return context
