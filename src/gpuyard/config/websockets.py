"""WebSockets to other servers of the instance, which prove who they are first."""

import asyncio
from typing import TYPE_CHECKING, Any

from gpuyard.config.dialling import Tls, connect_to_member
from gpuyard.config.sockets import keep_alive

if TYPE_CHECKING:
    from collections.abc import Mapping

    from websockets.asyncio.client import ClientConnection

_OPEN_S = 5.0
_CLOSE_S = 1.0


async def open_websocket(
    url: str,
    path: str,
    token: str,
    tls: Tls,
    headers: "Mapping[str, str] | None" = None,
) -> "ClientConnection":
    """A WebSocket to a path of the server at `url`, which proves that it knows `token`.
    `headers` say who asks; unset, the token does.

    OSError when nobody answers, or the proof fails; websockets' InvalidStatus when the
    server refuses.
    """
    from websockets.asyncio.client import connect
    from websockets.exceptions import InvalidStatus, WebSocketException

    if headers is None:
        headers = {"Authorization": f"Bearer {token}"}
    try:
        # No pings, and no proxy, which would see the token of a server on this host.
        connection = await connect(
            "ws" + url.removeprefix("http").rstrip("/") + path,
            additional_headers=headers,
            max_size=None,
            compression=None,
            ping_interval=None,
            open_timeout=_OPEN_S,
            close_timeout=_CLOSE_S,
            proxy=None,
            **await _proven(url, token, tls),
        )
        # An idle stream shows nothing of the other end.
        keep_alive(connection.transport.get_extra_info("socket"))
    except InvalidStatus:
        raise
    except (WebSocketException, TimeoutError) as error:
        raise ConnectionRefusedError(f"{url} does not answer: {error}") from None
    return connection


async def _proven(url: str, token: str, tls: Tls) -> dict[str, Any]:
    """The options of `connect` that make the server prove itself first."""
    if url.startswith("https:"):
        name = {"server_hostname": tls.name} if tls.name else {}
        return {"ssl": tls.context(), **name}
    connected = await asyncio.to_thread(connect_to_member, url, token, tls, _OPEN_S)
    connected.setblocking(False)
    return {"sock": connected}
