"""A read from the server with the standard library alone: importing httpx takes longer
than a listing may.
"""

import http.client
import json
import socket
import time
from typing import Any
from urllib.parse import urlencode, urlsplit

from gpuyard import __version__
from gpuyard.client.connection import Address
from gpuyard.client.problems import error_of
from gpuyard.config.dialling import HttpConnection, connect_to_own_port, is_loopback
from gpuyard.config.sockets import connected_socket
from gpuyard.domain.errors import LedgerBusyError, RateLimitedError, UnreachableError

_TIMEOUT_S = 60.0
_BUSY_TRIES = 10


def can_read(address: Address) -> bool:
    """Whether `address` is plain HTTP on this machine: TLS and proxies are the full
    client's.
    """
    try:
        parts = urlsplit(address.url)
        here = is_loopback(parts.hostname)
        return parts.scheme == "http" and parts.port != 0 and here
    except ValueError:
        return False  # the full client says what is wrong with it


class Reader:
    """One connection to a server for which `can_read` holds."""

    def __init__(self, address: Address, timeout_s: float = _TIMEOUT_S) -> None:
        self._address = address
        self._base = urlsplit(address.url)
        self._timeout_s = timeout_s
        self._connection = HttpConnection(self._base.netloc, self._dial, timeout_s)

    def _dial(self) -> socket.socket:
        if self._address.socket:
            return connected_socket(self._address.socket, self._address.owner)
        host = self._base.hostname or ""
        return connect_to_own_port(host, self._base.port or 80, self._timeout_s)

    def get(self, path: str, params: dict[str, Any]) -> Any:
        """The JSON at `path`; GpuyardError (as the server raised it) or
        UnreachableError.
        """
        for _ in range(_BUSY_TRIES):
            try:
                return self._get(path, params)
            except (LedgerBusyError, RateLimitedError) as error:
                time.sleep(error.retry_after)
        return self._get(path, params)

    def _get(self, path: str, params: dict[str, Any]) -> Any:
        target = f"{self._base.path}{path}?{urlencode(params, doseq=True)}"
        who = self._address.identity_headers
        headers = {"User-Agent": f"gpuyard/{__version__}", **who}
        try:
            self._connection.request("GET", target, headers=headers)
            answer = self._connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise unreachable(self._address, error) from None
        if answer.status >= 400:
            raise error_of(answer.status, content)
        return json.loads(content)

    def close(self) -> None:
        """Let go of the connection."""
        self._connection.close()


def unreachable(address: Address, error: Exception) -> UnreachableError:
    """No answer came."""
    cause = str(error) or type(error).__name__
    return UnreachableError(
        f"The server at {address.url} does not answer ({cause}).",
        "`gpuyard doctor` may know why.",
    )
