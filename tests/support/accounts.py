"""Accounts of two people on this machine, for the tests that need other users."""

import os
import pwd
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuyard.config.accounts import Account, Accounts
from tests.support.components import require
from tests.support.wait import wait_until

# One that every account may execute, unlike that of the tests.
PYTHON = shutil.which("python3", path=os.defpath) or "/usr/bin/python3"


@contextmanager
def real_account() -> Iterator[Account]:
    """An account that nobody else uses, with a home of its own; removed afterwards."""
    require("other-users", os.getuid() == 0)
    home = Path(tempfile.mkdtemp(prefix="gy-home-", dir="/tmp"))
    name = f"gy{uuid.uuid4().hex[:12]}"
    _passwd("useradd", "--no-create-home", "--home-dir", str(home), name)
    try:
        entry = pwd.getpwnam(name)
        os.chown(home, entry.pw_uid, entry.pw_gid)
        yield Accounts(name).find(name, "node.run_as")
    finally:
        _passwd("userdel", name)
        shutil.rmtree(home, ignore_errors=True)


def _passwd(*command: str) -> None:
    """Change the accounts; another test may have them locked for a moment."""

    def done() -> bool:
        return subprocess.run(command, check=False, capture_output=True).returncode == 0

    wait_until(done, what=f"{command[0]} to succeed")
