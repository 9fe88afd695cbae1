"""What becomes of an artifact that cannot be written."""

import errno
from pathlib import Path

import pytest

from gpuyard.client.artifact_download import ArtifactDownload
from gpuyard.domain.artifacts import Artifact


@pytest.mark.parametrize("size", [10, 100_000])
def test_a_full_disk_names_the_file_and_leaves_nothing(
    tmp_path: Path, size: int
) -> None:
    artifact = Artifact.model_construct(path="out.bin", size=size, sha256="0" * 64)
    # As if the disk were full: a few bytes fail when the file is closed.
    (tmp_path / "out.bin.partial").symlink_to("/dev/full")
    with (
        pytest.raises(OSError, match=r"out\.bin") as failed,
        ArtifactDownload(artifact, tmp_path) as download,
    ):
        download.write(bytes(size))
        download.finish()
    assert failed.value.errno == errno.ENOSPC
    assert not list(tmp_path.iterdir())
