"""Programs that another user of this machine runs."""

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tests.support.components import require

USER = "nobody"


@contextmanager
def attacking(code: str, *words: str | Path) -> Generator[subprocess.Popen[str]]:
    """Run Python code as the user `nobody`, who may read and write nothing of ours.

    What it prints is read from `stdout`. It is killed at the end.
    """
    require("other-users", os.getuid() == 0)
    python = shutil.which("python3", path=os.defpath) or sys.executable
    account = pwd.getpwnam(USER)
    process = subprocess.Popen(
        [python, "-I", "-S", "-u", "-c", code, *map(str, words)],
        user=account.pw_uid,
        group=account.pw_gid,
        extra_groups=(),
        cwd="/",
        env={},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
