"""A large body goes out in pieces, with its length, and again if need be."""

import asyncio

import httpx

from gpuyard.client.transport import AsyncPieces, Pieces, sent_as

BODY = bytes(range(256)) * 2000
URL = "http://127.0.0.1/"


def answer(request: httpx.Request) -> httpx.Response:
    assert request.headers["Content-Length"] == str(len(BODY))
    assert "Transfer-Encoding" not in request.headers
    return httpx.Response(200, content=request.content)


def test_a_large_body_goes_in_pieces_and_can_be_sent_again() -> None:
    sent = sent_as(BODY)
    assert max(len(piece) for piece in sent["content"]) < len(BODY)
    assert isinstance(sent["content"], Pieces)
    with httpx.Client(transport=httpx.MockTransport(answer)) as client:
        for _ in range(2):
            assert client.put(URL, **sent).content == BODY


def test_the_same_awaited() -> None:
    async def program() -> None:
        sent = sent_as(BODY, AsyncPieces)
        transport = httpx.MockTransport(answer)
        async with httpx.AsyncClient(transport=transport) as client:
            for _ in range(2):
                assert (await client.put(URL, **sent)).content == BODY

    asyncio.run(program())


def test_a_small_body_goes_at_once() -> None:
    assert sent_as(b"{}") == {"content": b"{}"}
    assert sent_as(None) == {"content": None}
