"""Folders of attempts on a shared volume, and what is found in them."""

import io
import os
from pathlib import Path
from typing import Any

import pytest

from gpuyard.config.settings import StorageSettings
from gpuyard.domain.attempt_order import AttemptOrder, ResumePoint
from gpuyard.domain.errors import ProviderError
from gpuyard.providers.checkpoint_files import CheckpointFinder, ended_by_itself
from gpuyard.providers.kubernetes.spool import KubernetesSpool
from gpuyard.providers.rsync import RsyncHost, WorkspaceSync
from gpuyard.providers.spool_datasets import SpoolDatasets
from gpuyard.storage.blobs import BlobStore, BucketError
from tests.support.open_folder import open_folder


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs")


@pytest.fixture
def spool(tmp_path: Path, blobs: BlobStore) -> KubernetesSpool:
    return KubernetesSpool(
        tmp_path / "spool",
        BlobStore(tmp_path / "snapshots"),
        blobs,
        WorkspaceSync(RsyncHost("kubernetes"), tmp_path),
        SpoolDatasets(
            tmp_path, "datasets", 1.0, tmp_path, StorageSettings(), "kubernetes"
        ),
        "kubernetes",
    )


def order(attempt: str = "attempt_1", **fields: Any) -> AttemptOrder:
    return AttemptOrder(attempt_id=attempt, name="x", command=("true",), **fields)


def test_a_job_gets_a_copy_of_its_folder_and_its_checkpoint(
    spool: KubernetesSpool, blobs: BlobStore, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "train.py").write_text("print()")
    blob = blobs.put(io.BytesIO(b"weights"))
    spool.stage_in(
        order(workdir=str(source), resume_from=ResumePoint(blob.sha256, "step-1.pt"))
    )
    work = spool.work("gpuyard-attempt-1")
    assert (work / "train.py").read_text() == "print()"
    assert (work.parent / "resume" / "step-1.pt").read_bytes() == b"weights"
    (work / "train.py").write_text("changed by the job")
    spool.stage_in(order(workdir=str(source)))
    assert (work / "train.py").read_text() == "changed by the job", "laid out once"
    spool.remove("gpuyard-attempt-1")
    assert not work.parent.exists()


def test_equal_folders_are_kept_once_and_old_copies_go(
    spool: KubernetesSpool, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number in range(8):
        (source / "x").write_text(str(number // 2))
        spool.stage_in(order(f"attempt_{number}", workdir=str(source)))
    assert len(list((tmp_path / "snapshots").glob("??/*"))) == 4


@pytest.mark.parametrize(
    "fields", [{"resume_from": ResumePoint("0" * 64)}, {"workdir": "/"}]
)
def test_what_cannot_be_copied_is_said_and_leaves_nothing(
    spool: KubernetesSpool, fields: dict[str, Any]
) -> None:
    with pytest.raises(ProviderError, match="folder cannot be copied") as raised:
        spool.stage_in(order(**fields))
    assert raised.value.error_code == "BAD_FOLDER"
    assert not spool.work("gpuyard-attempt-1").parent.exists()


@pytest.mark.parametrize("place", ["gpuyard-attempt-1", "gpuyard-attempt-1/resume"])
def test_nothing_is_written_through_a_link_that_a_job_has_put_there(
    spool: KubernetesSpool, blobs: BlobStore, tmp_path: Path, place: str
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "train.py").write_text("print()")
    outside = tmp_path / "outside"
    outside.mkdir()
    link = tmp_path / "spool" / place
    link.parent.mkdir(parents=True)
    link.symlink_to(outside)
    blob = blobs.put(io.BytesIO(b"weights"))
    point = ResumePoint(blob.sha256, "step-1.pt")
    with pytest.raises(ProviderError, match="below a link"):
        spool.stage_in(order(workdir=str(source), resume_from=point))
    assert list(outside.iterdir()) == []


def test_no_user_gets_a_copy_of_a_folder_that_is_closed_to_others(
    spool: KubernetesSpool,
) -> None:
    with open_folder() as folder:
        spool.stage_in(order(workdir=str(folder), user="mia"))
        closed = order("attempt_2", workdir=str(folder / "keys"), user="mia")
        with pytest.raises(ProviderError, match=r"workdir: .*everybody.*may read"):
            spool.stage_in(closed)
    (copied,) = spool.work("gpuyard-attempt-1").iterdir()
    assert copied.name == "train.py"
    assert not spool.work("gpuyard-attempt-2").exists()


def test_a_bucket_that_is_away_is_told_from_a_folder_that_cannot_be_copied(
    spool: KubernetesSpool, blobs: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> None:
        raise BucketError("The bucket does not answer.")

    blob = blobs.put(io.BytesIO(b"weights"))
    again = order(resume_from=ResumePoint(blob.sha256, "step-1.pt"))
    with monkeypatch.context() as patch:
        patch.setattr(blobs, "restore_in", away)
        with pytest.raises(BucketError):
            spool.stage_in(again)
    assert not spool.work("gpuyard-attempt-1").parent.exists()
    spool.stage_in(again)
    assert (
        spool.work("gpuyard-attempt-1").parent / "resume" / "step-1.pt"
    ).read_bytes() == b"weights"


def test_checkpoints_are_told_once_they_are_complete_and_torn_ones_never(
    tmp_path: Path,
) -> None:
    checkpoints = CheckpointFinder()
    (tmp_path / "step-1.pt").write_text("one")
    assert checkpoints.find("job", tmp_path, "step-*", 0.0, over=False) == [], (
        "it may still be written"
    )
    (tmp_path / os.fsdecode(b"step-2-\xff.pt")).write_text("two")
    (first,) = checkpoints.find("job", tmp_path, "step-*", 0.0, over=False)
    assert (first.path, first.step, first.where.read_text()) == ("step-1.pt", 1, "one")
    (tmp_path / "step-3.pt").write_text("half")
    found = checkpoints.find("job", tmp_path, "step-*", 0.0, over=False)
    assert [item.step for item in found] == [
        1,
        2,
    ], "the third was just being written when it was killed"
    assert found[1].path.encode() == b"step-2-\xef\xbf\xbd.pt", "what is told is text"
    assert [
        item.step
        for item in checkpoints.find("job", tmp_path, "step-*", 0.0, over=True)
    ] == [1, 2, 3]


def test_who_was_killed_did_not_leave_by_itself() -> None:
    assert ended_by_itself(0, "")
    assert ended_by_itself(3, "")
    for code, reason in (
        (137, ""),
        (143, ""),
        (None, ""),
        (0, "preempted"),
        (1, "out_of_memory"),
    ):
        assert not ended_by_itself(code, reason)
