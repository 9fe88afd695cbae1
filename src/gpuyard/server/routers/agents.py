"""`/api/v1/agent`: the door for agents of other homes: a WebSocket that carries the
frames of domain/wire.py.
"""

import asyncio
import socket

from fastapi import APIRouter, WebSocket

from gpuyard.server.app_state import AppState

router = APIRouter()
_PART = 1 << 16


@router.websocket("/api/v1/agent")
async def agent(call: WebSocket) -> None:
    """One agent's link.

    Refused by a server that does not lead; the edge has looked at its token.
    """
    app_state: AppState = call.app.state.app_state
    if not app_state.leads:
        await call.close()
        return
    await call.accept()
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_unix_connection(sock=theirs)
    serving = asyncio.create_task(
        app_state.controller.serve_agent(*await asyncio.open_unix_connection(sock=ours))
    )
    try:
        await _carry(call, reader, writer)
    finally:
        writer.close()
        await serving


async def _carry(
    call: WebSocket, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Carry bytes both ways until one of them ends."""

    async def down() -> None:
        while part := await reader.read(_PART):
            await call.send_bytes(part)

    async def up() -> None:
        while True:
            writer.write(await call.receive_bytes())
            await writer.drain()

    ways = [asyncio.create_task(down()), asyncio.create_task(up())]
    try:
        ended, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
    if ways[0] in ended:
        await call.close()
