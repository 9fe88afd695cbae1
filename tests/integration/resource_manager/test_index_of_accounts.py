"""The index of a batch, which a process of root writes as the account that named the
folder: real accounts of this machine.
"""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuyard.config.accounts import Account
from gpuyard.resource_manager.batch_index import write_index
from tests.support.accounts import PYTHON, real_account

# Looks for the process that writes the index, and tries to look into it.
LOOK = """
import os
opened = ""
print("ready", flush=True)
while not os.path.exists("over"):
    others = {pid for pid in os.listdir("/proc") if pid.isdigit()}
    for pid in others - {str(os.getpid())}:
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if b"resource_manager.index_file" not in file.read():
                    continue
            open(f"/proc/{pid}/mem", "rb")
            opened = "opened"
        except OSError:
            pass
print(opened)
"""


@pytest.fixture
def bob() -> Iterator[Account]:
    with real_account() as account:
        yield account


@pytest.fixture
def results(bob: Account) -> Iterator[Path]:
    """A folder that only bob may enter."""
    with tempfile.TemporaryDirectory(dir=bob.home) as name:
        os.chown(name, bob.uid, bob.gid)
        yield Path(name)


def row_of(folder: Path) -> dict[str, Any]:
    return {"id": "b-1", "script": "who", "results": str(folder)}


def items(count: int) -> list[dict[str, Any]]:
    item = {"path": "/a", "entry": None, "state": "failed", "reason": "why"}
    return [{**item, "number": n, "started_at": None} for n in range(count)]


def test_its_account_cannot_look_into_the_process(bob: Account, results: Path) -> None:
    looking = subprocess.Popen(
        [PYTHON, "-I", "-c", LOOK],
        cwd=results,
        stdout=subprocess.PIPE,
        text=True,
        user=bob.uid,
        group=bob.gid,
        extra_groups=(),
    )
    with looking:
        assert looking.stdout
        assert looking.stdout.readline() == "ready\n"
        try:
            write_index(row_of(results / "b-1"), items(20_000), bob)
        finally:
            (results / "over").touch()
        assert looking.stdout.read() == "\n"
    index = results / "b-1" / "index.json"
    assert len(json.loads(index.read_text())["items"]) == 20_000
    assert (index.stat().st_uid, index.stat().st_mode & 0o777) == (bob.uid, 0o600)


def test_a_link_to_a_folder_of_root_is_no_way_to_write_there(
    bob: Account, results: Path, tmp_path: Path
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(0o755)
    (results / "b-1").symlink_to(closed)
    (results / "above").symlink_to(tmp_path)
    for folder in (results / "b-1", results / "above" / "b-2", closed / "b-3"):
        with pytest.raises(OSError, match=bob.name):
            write_index(row_of(folder), items(1), bob)
    assert not list(closed.iterdir())
