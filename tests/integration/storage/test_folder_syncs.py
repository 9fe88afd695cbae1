"""A new file's name is on the disk before anybody is told of it."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gpuyard.storage.folder_syncs import FolderSyncs
from tests.support.faults import Faults
from tests.support.wait import wait_until

PUT = """
import io, os, sys
from pathlib import Path
from gpuyard.storage.blobs import BlobStore
blob = BlobStore(Path("deep/blobs").absolute()).put(io.BytesIO(b"content"))
os.rename("made", "acknowledged")
print(blob.sha256)
"""
EVIDENCE = """
import os
from pathlib import Path
from types import SimpleNamespace
from gpuyard.verification import keys, settlement
from tests.unit.verification.bundles import evidence
key = keys.Ed25519PrivateKey.generate()
checks = [SimpleNamespace(id=f"check_{n}", evidence=evidence) for n in range(3)]
assert settlement.keep_evidence(Path("evidence").absolute(), key, checks) == []
os.rename("made", "acknowledged")
"""


def synced(program: str, folder: Path) -> list[str]:
    """Its syncs and renames, and what it printed, with paths below `folder`."""
    (folder / "made").touch()
    faults = Faults(folder)
    root = Path(__file__).parents[3]
    environment = os.environ | faults.environment | {"PYTHONPATH": str(root)}
    command = [sys.executable, "-c", program]
    subprocess.run(command, cwd=folder, env=environment, check=True, timeout=60)
    return [line.replace(f"{folder}/", "") for line in faults.synced()]


def test_a_blob_is_synced_with_its_folders_before_it_is_acknowledged(
    tmp_path: Path,
) -> None:
    lines = synced(PUT, tmp_path)
    (shard,) = (tmp_path / "deep" / "blobs").iterdir()
    (blob,) = shard.iterdir()
    name = blob.relative_to(tmp_path)
    assert lines[:2] == [f"sync {tmp_path}", "sync deep"]
    assert lines[2].startswith("sync deep/blobs/incoming-")
    assert lines[3:] == [
        "sync deep/blobs",
        f"rename {name}",
        f"sync {name.parent}",
        "rename acknowledged",
    ]


def test_evidence_is_synced_and_its_folder_once_for_all(tmp_path: Path) -> None:
    lines = synced(EVIDENCE, tmp_path)
    assert lines[0] == f"sync {tmp_path}"
    for number in range(3):
        file, renamed = lines[1 + 2 * number : 3 + 2 * number]
        assert file.startswith(f"sync evidence/.check_{number}.json")
        assert renamed == f"rename evidence/check_{number}.json"
    assert lines[7:] == ["sync evidence", "rename acknowledged"]


def test_those_who_wait_for_the_same_folder_share_a_sync() -> None:
    begun: list[Path] = []
    may_end = threading.Event()

    def sync(folder: Path) -> None:
        begun.append(folder)
        assert may_end.wait(60)
        if folder.name == "bad":
            raise OSError(5, "Input/output error")

    syncs = FolderSyncs(sync)
    folder = Path("a")
    come: list[int] = []

    def store(number: int) -> None:
        come.append(number)
        syncs.sync(folder)

    threads = [threading.Thread(target=store, args=(n,)) for n in range(100)]
    threads[0].start()
    wait_until(lambda: begun, what="the first sync to begin")
    for thread in threads[1:]:
        thread.start()
    # Those that came after the first sync had begun need another one.
    wait_until(lambda: len(come) == 100, what="the others to come")
    may_end.set()
    for thread in threads:
        thread.join(60)
    assert 2 <= len(begun) < 50
    with pytest.raises(OSError, match="Input/output"):
        syncs.sync(Path("bad"))
