"""Bytes between a WebSocket and a pair of streams, as they come: whoever cannot pass
them on stops to read.
"""

import asyncio
from contextlib import suppress

from fastapi import WebSocket, WebSocketDisconnect

_PART = 1 << 16


async def carry(
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
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        ends = await asyncio.gather(*ways, return_exceptions=True)
    if ends[0] is None:  # all was sent
        # A client may leave as soon as it has the last frame.
        with suppress(WebSocketDisconnect):
            await call.close()
