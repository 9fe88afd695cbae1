"""Where a client finds the address and the token of its server."""

import json
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuyard.client.connection import find_server, running_server
from gpuyard.config.locks import lock_exclusively, open_lock
from gpuyard.config.paths import Home


@pytest.fixture
def home() -> Iterator[Home]:
    """A home whose path is short enough for a socket."""
    with tempfile.TemporaryDirectory() as folder:
        yield Home(Path(folder))


def test_a_token_may_end_with_a_newline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUYARD_URL", "http://127.0.0.1:1/")
    monkeypatch.setenv("GPUYARD_TOKEN", "from-a-file\n")
    address = find_server()
    assert (address.url, address.token) == ("http://127.0.0.1:1", "from-a-file")


def test_a_new_server_that_has_only_the_lock_is_not_the_one_that_was_killed(
    home: Home,
) -> None:
    announcement = {"pid": os.getpid(), "url": "http://127.0.0.1:1", "socket": True}
    home.server.write_text(json.dumps(announcement))
    with open_lock(home.lock) as lock:
        lock_exclusively(lock)
        home.lock.write_text(str(os.getpid()))
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(home.server_socket))
            server.listen()
            found = running_server(home)
            assert found
            assert found.socket == home.server_socket
        assert running_server(home) is None
