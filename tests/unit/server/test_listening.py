"""Where a server listens."""

import json
import socket
from pathlib import Path

import pytest

from gpuyard.config.settings import Settings
from gpuyard.server.listening import listen, url_of
from tests.support.ports import free_port


def test_a_server_comes_back_at_the_port_of_the_one_that_was_killed(
    tmp_path: Path,
) -> None:
    announced = tmp_path / "server.json"
    with listen(Settings(), announced) as first:
        url = url_of(first)
        announced.write_text(json.dumps({"url": url}))
        with listen(Settings(), announced) as other:
            assert url_of(other) != url, "another program has the port"
    with listen(Settings(), announced) as again:
        assert url_of(again) == url


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"url": 3}', '{"url": "http://127.0.0.1:99999"}']
)
def test_a_file_that_names_no_port_is_no_fault(tmp_path: Path, text: str) -> None:
    announced = tmp_path / "server.json"
    announced.write_text(text)
    with listen(Settings(), announced) as listener:
        assert listener.getsockname()[1] > 0


def test_a_port_that_was_chosen_is_taken(tmp_path: Path) -> None:
    announced = tmp_path / "server.json"
    announced.write_text(json.dumps({"url": f"http://127.0.0.1:{free_port()}"}))
    port = free_port()
    settings = Settings.model_validate({"server": {"port": port}})
    with listen(settings, announced) as listener, socket.socket() as client:
        client.connect(("127.0.0.1", port))
        assert listener.getsockname()[1] == port
