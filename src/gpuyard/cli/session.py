"""Reaching the server from a command, with the client imported late."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuyard.client.sync import Client


def connect(*, start: bool = True) -> "Client":
    """A client; with `start`, the embedded server is started when none runs."""
    from gpuyard.client.connection import find_server
    from gpuyard.client.sync import Client

    return Client(find_server(start=start))
