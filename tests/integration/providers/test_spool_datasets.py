"""Copies of datasets in a folder that the nodes of an external queue share."""

import io
import os
import subprocess
from pathlib import Path

import pytest

from gpuyard.config.settings import StorageSettings
from gpuyard.domain.contents import sha256_of
from gpuyard.domain.datasets import DatasetMount, Manifest
from gpuyard.domain.errors import ProviderError
from gpuyard.providers.slurm.datasets import MAKE_ROOM
from gpuyard.providers.spool_datasets import SpoolDatasets
from gpuyard.storage.dataset_store import DatasetStores, put_manifest

SIZE = 1000


def stored(home: Path, name: str) -> DatasetMount:
    """A version with one file, in the store of a home."""
    content = name.encode() * SIZE
    blobs = DatasetStores(home, StorageSettings())("project")
    digest = sha256_of(content)
    blobs.put(io.BytesIO(content))
    manifest = Manifest([("file", len(content), False)], [(digest, len(content))])
    variable = f"GPUYARD_DATASET_{name.upper()}"
    return DatasetMount(variable, "project", put_manifest(blobs, manifest))


def test_one_that_an_attempt_reads_stays_and_others_make_room(tmp_path: Path) -> None:
    home = tmp_path / "home"
    root = tmp_path / "spool" / "datasets"
    copies = SpoolDatasets(
        root.parent, "datasets", 2.5e-6, home, StorageSettings(), "slurm"
    )
    first, second, third = (stored(home, name) for name in ("a", "b", "c"))
    where = copies.have("one", [first])
    assert where[first.variable].joinpath("file").read_bytes() == b"a" * SIZE
    copies.have("two", [second])
    assert copies.forget("two")
    assert not copies.forget("two")
    # Another server goes by the notes in the folder.
    copies = SpoolDatasets(
        root.parent, "datasets", 2.5e-6, home, StorageSettings(), "slurm"
    )
    copies.have("three", [third])
    kept = {path.name for path in (root / "copies").iterdir()}
    assert kept == {first.digest, third.digest}

    gone = DatasetMount("GPUYARD_DATASET_GONE", "project", "0" * 64)
    with pytest.raises(ProviderError, match="no longer stored") as caught:
        copies.have("four", [gone])
    assert caught.value.error_code == "DATASET_MISSING"


def test_what_one_attempt_needs_stays_though_it_is_over_the_limit(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    copies = SpoolDatasets(tmp_path, "datasets", 1.5e-6, home, StorageSettings(), "x")
    both = [stored(home, name) for name in ("a", "b")]
    where = copies.have("one", both)
    contents = [folder.joinpath("file").read_bytes() for folder in where.values()]
    assert contents == [b"a" * SIZE, b"b" * SIZE]
    # Nobody has marked them as read before they were all there: one is made again.
    copies.forget("one")
    (where[both[0].variable] / "file").unlink()
    assert copies.have("two", both) == where
    assert all(folder.joinpath("file").exists() for folder in where.values())


def test_what_jobs_put_among_the_notes_is_left_alone(tmp_path: Path) -> None:
    home = tmp_path / "home"
    notes = tmp_path / "datasets" / "users"
    copies = SpoolDatasets(tmp_path, "datasets", 1.5e-6, home, StorageSettings(), "x")
    first, second, third = (stored(home, name) for name in ("a", "b", "c"))
    copies.have("one", [first])
    other = tmp_path / "other"
    other.write_text("of the server")
    os.mkfifo(notes / "pipe")
    (notes / "endless").symlink_to("/dev/zero")
    (notes / "two").symlink_to(other)
    copies.have("two", [second])
    assert other.read_text() == "of the server"
    assert copies.forget("one")
    copies.have("three", [third])
    kept = {path.name for path in (tmp_path / "datasets" / "copies").iterdir()}
    assert kept == {second.digest, third.digest}
    notes.rename(tmp_path / "moved")
    (tmp_path / "others").mkdir()
    notes.symlink_to(tmp_path / "others")
    with pytest.raises(ProviderError, match="lies below a link"):
        copies.have("four", [third])
    assert not copies.forget("four")
    assert not list((tmp_path / "others").iterdir())


def test_on_a_login_node_the_one_used_last_and_those_in_use_stay(
    tmp_path: Path,
) -> None:
    for age, name in enumerate(("newest", "in-use", "old", "older")):
        copy = tmp_path / "copies" / name
        copy.mkdir(parents=True)
        (copy / "file").write_bytes(bytes(100_000))
        (copy / "file").chmod(0o444)
        os.utime(copy, (1000 - age, 1000 - age))
        copy.chmod(0o555)
    (tmp_path / "users").mkdir()
    (tmp_path / "users" / "attempt").write_text("other\nin-use\n")
    command = ["sh", "-c", MAKE_ROOM, "sh", str(tmp_path), "250"]
    subprocess.run(command, check=True)
    kept = {path.name for path in (tmp_path / "copies").iterdir()}
    assert kept == {"newest", "in-use"}
