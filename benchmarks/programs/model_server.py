"""`model_server.py PORT SECONDS`: a model server in OpenAI's form that answers each
request after so many seconds, and streams its first word at once.
"""

import asyncio
import json
import sys


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of one connection."""
    while line := await reader.readline():
        length = 0
        while (header := await reader.readline()).strip():
            name, _, value = header.decode().partition(":")
            if name.lower() == "content-length":
                length = int(value)
        content = await reader.readexactly(length)
        body = json.loads(content) if content else {}
        if body.get("stream"):
            writer.write(head("text/event-stream", None) + chunk(b'data: {"n": 1}\n\n'))
            writer.write(chunk(b"data: [DONE]\n\n") + chunk(b""))
        elif line.startswith(b"POST"):
            await asyncio.sleep(SECONDS)
            message = {"role": "assistant", "content": "well"}
            answer = json.dumps({"choices": [{"index": 0, "message": message}]})
            writer.write(head("application/json", len(answer)) + answer.encode())
        else:
            writer.write(head("application/json", 2) + b"{}")
        await writer.drain()
    writer.close()


def head(kind: str, length: int | None) -> bytes:
    """The head of an answer, in chunks if its length is not known."""
    size = (
        "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    )
    return f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n{size}\r\n\r\n".encode()


def chunk(data: bytes) -> bytes:
    """A part of an answer in chunks; an empty one ends it."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


async def main() -> None:
    """Serve until killed."""
    server = await asyncio.start_server(
        serve, "127.0.0.1", int(sys.argv[1]), backlog=2000
    )
    await server.serve_forever()


SECONDS = float(sys.argv[2])
asyncio.run(main())
