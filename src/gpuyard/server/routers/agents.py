"""`/api/v1/agent`: the door for agents of other homes: a WebSocket that carries the
frames of domain/wire.py.
"""

import asyncio
import socket

from fastapi import APIRouter, WebSocket

from gpuyard.server.app_state import AppState
from gpuyard.server.carrying import carry

router = APIRouter()


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
        await carry(call, reader, writer)
    finally:
        writer.close()
        await serving
