"""Another user of the machine in place of our server, or of our agent."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuyard.config.sockets import connected_socket
from tests.support.attacker import attacking

LISTEN = """
import os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o777)
server.listen()
print("listening")
server.accept()[0].recv(1)
"""


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder in which everybody may write, as `/tmp` is."""
    with tempfile.TemporaryDirectory(prefix="gpuyard-") as name:
        folder = Path(name)
        folder.chmod(0o1777)
        yield folder


def test_an_agent_joins_no_server_of_another_user(public_folder: Path) -> None:
    path = public_folder / "agent.sock"
    with attacking(LISTEN, path) as attacker:
        assert attacker.stdout
        assert attacker.stdout.readline() == "listening\n"
        with pytest.raises(PermissionError, match="is at the other end"):
            connected_socket(path)
