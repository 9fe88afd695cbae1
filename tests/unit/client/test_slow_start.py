"""A server that needs long to start is not said to have failed."""

import os
import signal
import sys
from pathlib import Path

import pytest

from gpuyard.client import connection
from gpuyard.config.paths import Home
from gpuyard.domain.errors import UnreachableError

SLOW = """\
#!/bin/sh
echo $$ > "$PIDFILE"
echo 'listening for agents'
exec sleep 600
"""


def test_who_waits_for_a_slow_server_is_told_that_it_is_still_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python"
    program.write_text(SLOW)
    program.chmod(0o700)
    pid = tmp_path / "pid"
    os.mkfifo(pid)
    monkeypatch.setenv("PIDFILE", str(pid))
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(connection, "_START_S", 0.0)
    home = Home(tmp_path / "home")
    with pytest.raises(UnreachableError, match="has been starting for 0 s") as refused:
        connection.start_server(home)
    os.kill(int(pid.read_text()), signal.SIGKILL)
    assert "Try again" in str(refused.value)
