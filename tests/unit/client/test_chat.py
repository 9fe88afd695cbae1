"""Requests to models, as the clients send them."""

import httpx

from gpuyard.client.connection import Address
from gpuyard.client.sync import Client


def test_a_request_says_how_urgent_it_is():
    seen = []

    def answer(request):
        seen.append(request.headers.get("X-Gpuyard-Priority"))
        return httpx.Response(200, json={"choices": []})

    transport = httpx.MockTransport(answer)
    with Client(Address("https://gpuyard.test", ""), transport=transport) as client:
        assert client.ask({"model": "a"}, priority=5) == {"choices": []}
        assert "".join(client.chat({"model": "a"}, priority=1)) == ""
        client.ask({"model": "a"})
    assert seen == ["5", "1", None]
