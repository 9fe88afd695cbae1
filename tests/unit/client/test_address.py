"""Where a client finds the address and the token of its server."""

import pytest

from gpuyard.client.connection import find_server


def test_a_token_may_end_with_a_newline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUYARD_URL", "http://127.0.0.1:1/")
    monkeypatch.setenv("GPUYARD_TOKEN", "from-a-file\n")
    address = find_server()
    assert (address.url, address.token) == ("http://127.0.0.1:1", "from-a-file")
