"""A standby server passes a WebSocket on to the leader, as it does requests
(forwarding.py).
"""

import asyncio
from collections.abc import Mapping

from fastapi import WebSocket
from starlette.responses import Response
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus

from gpuyard.config.websockets import open_websocket
from gpuyard.domain.errors import UnreachableError
from gpuyard.server.acting import HEADER, acted_for
from gpuyard.server.app_state import AppState
from gpuyard.server.sign_in.cookies import Cookies
from gpuyard.server.sign_in.forwarded import ForwardedBrowser

_FORWARDED = "x-gpuyard-forwarded"


async def pass_on(call: WebSocket, app_state: AppState) -> None:
    """Carry a WebSocket to the leader and back, until one end closes it.

    UnreachableError when there is no leader.
    """
    leader = app_state.election.leader if app_state.election else None
    # Two servers that take each other for the leader must not pass on for ever.
    is_passed_on = _FORWARDED in call.headers
    if leader is None or leader.url == app_state.url or is_passed_on:
        text = "No server is the leader at the moment."
        raise UnreachableError(text, "Try again in some seconds.")
    path = call.scope["raw_path"].decode("latin-1")
    browser = ForwardedBrowser(app_state.sign_in.cookies, Cookies(leader.url))
    headers = {_FORWARDED: "1", **who_asks(call.headers, browser)}
    if name := acted_for(call.scope):
        headers[HEADER] = name
    try:
        link = await open_websocket(
            leader.url, path, app_state.token, app_state.tls, headers
        )
    except InvalidStatus as refused:
        answer = refused.response
        kind = answer.headers.get("Content-Type")
        body = bytes(answer.body or b"")
        await call.send_denial_response(
            Response(body, answer.status_code, media_type=kind)
        )
        return
    except OSError as error:
        raise UnreachableError(f"The leader does not answer: {error}.") from None
    async with link:
        await call.accept()
        await _carry(call, link)


def who_asks(headers: Mapping[str, str], browser: ForwardedBrowser) -> dict[str, str]:
    """The headers by which the leader knows who asks: a token, or the session of a
    browser with the page that it comes from, as the leader calls them.
    """
    if "authorization" in headers:
        return {"Authorization": headers["authorization"]}
    names = [name for name in ("Cookie", "Origin") if name in headers]
    given = [(name.encode(), headers[name].encode("latin-1")) for name in names]
    told = browser.request(given)
    return {name.decode(): value.decode("latin-1") for name, value in told}


async def _carry(call: WebSocket, link: ClientConnection) -> None:
    async def up() -> None:
        while True:
            await link.send(await call.receive_bytes())

    async def down() -> None:
        async for part in link:
            await call.send_bytes(part if isinstance(part, bytes) else part.encode())

    ways = [asyncio.create_task(down()), asyncio.create_task(up())]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        ends = await asyncio.gather(*ways, return_exceptions=True)
    if ends[0] is None or isinstance(ends[0], ConnectionClosed):
        await call.close()
