"""The store of secrets: what its files hold, and a kill at each step of a write."""

import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from gpuyard.domain.errors import RefusedError
from gpuyard.storage.secret_store import SecretStore

# Puts a secret, and is killed before or after the N-th change of its folder.
KILLED = """
import os, pathlib, signal, sys
from gpuyard.storage.secret_store import SecretStore

left = int(sys.argv[2])

def count():
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

def killing(change):
    def step(*words):
        count()
        done = change(*words)
        count()
        return done
    return step

os.fsync = killing(os.fsync)
pathlib.Path.replace = killing(pathlib.Path.replace)
SecretStore(pathlib.Path(sys.argv[1])).put("NEW", "the new value", 2.0)
"""


def _put_until_killed(folder: Path, step: int) -> bool:
    """False if it was done before this step."""
    done = subprocess.run([sys.executable, "-c", KILLED, str(folder), str(step)])
    assert done.returncode in (0, -signal.SIGKILL)
    return done.returncode != 0


def test_a_value_is_kept_and_stands_in_no_file(tmp_path: Path) -> None:
    store = SecretStore(tmp_path / "secrets")
    store.put("HF_TOKEN", "the planted value", 1.0)
    store.put("OTHER", "another", 2.0)
    fresh = SecretStore(tmp_path / "secrets")
    assert (fresh.get("HF_TOKEN"), fresh.get("MISSING")) == ("the planted value", None)
    assert fresh.times() == {"HF_TOKEN": 1.0, "OTHER": 2.0}
    files = list((tmp_path / "secrets").iterdir())
    assert all(b"planted" not in path.read_bytes() for path in files)
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert (tmp_path / "secrets").stat().st_mode & 0o777 == 0o700


def test_a_removed_secret_is_gone(tmp_path: Path) -> None:
    store = SecretStore(tmp_path)
    store.put("A", "value", 1.0)
    assert store.remove("A")
    assert not store.remove("A")
    assert store.get("A") is None


def test_entries_cannot_be_exchanged(tmp_path: Path) -> None:
    store = SecretStore(tmp_path)
    store.put("A", "value of a", 1.0)
    store.put("B", "value of b", 1.0)
    content = msgspec.json.decode((tmp_path / "secrets.json").read_bytes())
    secrets = content["secrets"]
    content["secrets"] = {"A": secrets["B"], "B": secrets["A"]}
    (tmp_path / "secrets.json").write_bytes(msgspec.json.encode(content))
    with pytest.raises(RefusedError, match="A cannot be decrypted"):
        store.get("A")


def test_a_lost_key_is_told_and_not_replaced(tmp_path: Path) -> None:
    store = SecretStore(tmp_path)
    store.put("A", "value", 1.0)
    key = (tmp_path / "key").read_bytes()
    (tmp_path / "key").unlink()
    for action in (lambda: store.get("A"), lambda: store.put("B", "more", 2.0)):
        with pytest.raises(RefusedError, match="is gone or damaged"):
            action()
    (tmp_path / "key").write_bytes(key)
    assert store.get("A") == "value"


def test_a_damaged_store_is_told(tmp_path: Path) -> None:
    (tmp_path / "secrets.json").write_text("{")
    with pytest.raises(RefusedError, match="is damaged"):
        SecretStore(tmp_path).get("A")


# Before the first value the key is written, too: three steps more, each with two places.
@pytest.mark.parametrize(("old", "places"), [(None, 12), ("the old value", 6)])
def test_a_kill_at_any_step_of_a_write_loses_nothing(
    tmp_path: Path, old: str | None, places: int
) -> None:
    killed = 0
    while True:
        folder = tmp_path / str(killed)
        store = SecretStore(folder)
        if old:
            store.put("OLD", old, 1.0)
        if not _put_until_killed(folder, killed + 1):
            break
        killed += 1
        assert store.get("OLD") == old
        assert store.get("NEW") in (None, "the new value")
        store.put("NEXT", "the next value", 3.0)
        assert (store.get("OLD"), store.get("NEXT")) == (old, "the next value")
    assert killed == places
