"""Nobody waits for a slow server without a word."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpuyard.cli import slow_server
from gpuyard.cli.slow_server import told_when_slow
from gpuyard.client.connection import Address, stopped_server
from gpuyard.config.paths import Home
from tests.support.wait import wait_until

ADDRESS = Address("http://127.0.0.1:8400", "")
HOLDS_LOCK = """
import fcntl, os, sys
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
file.write(str(os.getpid()))
file.flush()
sys.stdin.read()
"""


def test_an_answer_that_takes_long_is_told_of(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_server, "AFTER_S", 0.02)
    words = "the server at http://127.0.0.1:8400 has not answered for"
    before = signal.getsignal(signal.SIGALRM)
    with told_when_slow(ADDRESS):
        wait_until(lambda: words in capsys.readouterr().err, what="the words")
    assert signal.getsignal(signal.SIGALRM) == before


@pytest.mark.parametrize("stderr", ["closed", "unread"])
def test_who_reads_no_messages_gets_the_answer(
    monkeypatch: pytest.MonkeyPatch, stderr: str
) -> None:
    """As after `2>&-`, and in a pipe whose reader has left."""
    told: list[bool] = []

    def words(_: Address) -> str:
        told.append(True)
        return "the server is slow"

    monkeypatch.setattr(slow_server, "AFTER_S", 0.02)
    monkeypatch.setattr(slow_server, "_words", words)
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as unread:
        monkeypatch.setattr(sys, "stderr", unread if stderr == "unread" else None)
        with told_when_slow(ADDRESS):
            wait_until(lambda: told, what="the words")
        monkeypatch.undo()
        with Path(os.devnull).open("w") as nothing:
            os.dup2(nothing.fileno(), writer)


def test_a_server_that_was_stopped_is_known(tmp_path: Path) -> None:
    home = Home(tmp_path)
    command = [sys.executable, "-I", "-S", "-c", HOLDS_LOCK, str(home.lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as server:
        wait_until(lambda: home.lock.exists() and home.lock.read_text(), what="it")
        assert stopped_server(home) == 0
        server.send_signal(signal.SIGSTOP)
        wait_until(lambda: stopped_server(home) == server.pid, what="it to be seen")
        server.kill()
    assert stopped_server(home) == 0
