"""A large body goes out in pieces, with its length, and again if need be."""

import asyncio

from gpuyard.client.transport import Pieces, sent_as


def test_a_large_body_goes_in_pieces_and_can_be_sent_again() -> None:
    body = bytes(range(256)) * 2000
    sent = sent_as(body)
    assert sent["headers"] == {"Content-Length": str(len(body))}
    pieces = sent["content"]
    assert isinstance(pieces, Pieces)
    for _ in range(2):
        assert b"".join(pieces) == body
    assert max(len(piece) for piece in pieces) < len(body)

    async def awaited() -> bytes:
        return b"".join([piece async for piece in pieces])

    assert asyncio.run(awaited()) == body


def test_a_small_body_goes_at_once() -> None:
    assert sent_as(b"{}") == {"content": b"{}"}
    assert sent_as(None) == {"content": None}
