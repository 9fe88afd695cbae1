"""What tests rely on when they kill a program that was forked."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.forkserver import start_fork_server

_LIVES_AFTER_ITS_LAUNCHER = """
import os, sys, time
print(os.getpid(), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("number", [3, 400, 1010])
def test_its_files_stay_open_until_it_is_gone(number: int) -> None:
    # A test process with many open files gives its program such a number. Where only
    # the launcher held the file, a killed program wrote on while it was taken for dead.
    python = start_fork_server(sys.executable, (), programs=True)
    ended, low = os.pipe()
    lives = fcntl.fcntl(low, fcntl.F_DUPFD, number)
    os.close(low)
    process = subprocess.Popen(
        [python, "-c", _LIVES_AFTER_ITS_LAUNCHER],
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=[lives],
    )
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    assert Path(f"/proc/{pid}/fd/{lives}").exists()
    os.close(lives)
    process.kill()
    process.wait(60)
    assert os.read(ended, 1) == b""
    os.close(ended)
    process.stdout.close()
    # A zombie, perhaps, for a moment: it has no files any more.
    assert not Path(f"/proc/{pid}/fd/0").exists()
