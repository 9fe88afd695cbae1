"""Looks up the names of receivers in threads of their own.

The event loop's own lookups share a few threads with each other, and a lookup cannot be
ended: two names whose servers never answer would stop the deliveries to all others.
"""

import asyncio
import socket
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from typing import Any, cast

import httpcore

from gpuyard.domain.public_addresses import is_public

# Of names whose servers do not answer, so many are waited for at once.
_THREADS = 16
# So long the next address waits for the one before, if a name has several.
_NEXT_ADDRESS_S = 2.0


class NameLookups(httpcore.AsyncNetworkBackend):
    """Opens connections as httpcore does by itself, but for the lookups.

    There is at most one lookup of a name at a time: who wants the same one waits for
    that one. `public_only`: it connects to no address that is not of the public
    internet, whatever its name.
    """

    def __init__(self, *, public_only: bool = False) -> None:
        self._public_only = public_only
        self._direct = cast("httpcore.AsyncNetworkBackend", httpcore.AnyIOBackend())
        self._threads = ThreadPoolExecutor(_THREADS, "lookup")
        self._pending: dict[tuple[str, int], asyncio.Future[list[str]]] = {}

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore calls it so
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first address of `host` that answers."""
        found = await self._addresses(host, port, timeout)
        if self._public_only:
            found = [address for address in found if is_public(address)]
        if not found:
            raise httpcore.ConnectError("it has no address of the public internet")
        *others, last = found
        for address in others:
            soon = min(timeout or _NEXT_ADDRESS_S, _NEXT_ADDRESS_S)
            try:
                return await self._direct.connect_tcp(
                    address, port, soon, local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
        return await self._direct.connect_tcp(
            last, port, timeout, local_address, socket_options
        )

    async def _addresses(
        self, host: str, port: int, within_s: float | None
    ) -> list[str]:
        """All addresses of `host`, the best first."""
        if _is_address(host):
            return [host]
        if (host, port) not in self._pending:
            self._begin(host, port)
        try:
            async with asyncio.timeout(within_s):
                # It goes on when this caller does not wait any longer.
                return await asyncio.shield(self._pending[host, port])
        except TimeoutError:
            raise httpcore.ConnectTimeout from None
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error

    def _begin(self, host: str, port: int) -> None:
        loop = asyncio.get_running_loop()
        lookup = loop.run_in_executor(self._threads, _look_up, host, port)
        self._pending[host, port] = lookup

        def ended(lookup: asyncio.Future[list[str]]) -> None:
            del self._pending[host, port]
            if not lookup.cancelled():
                lookup.exception()  # seen, also when nobody waits any longer

        lookup.add_done_callback(ended)

    def close(self) -> None:
        """Begin no more lookups."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _look_up(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))
