"""Which batch scripts the server reads for a job."""

import os
from collections.abc import Generator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from gpuyard.domain.attempt_order import AttemptOrder
from gpuyard.domain.errors import ProviderError
from gpuyard.providers.slurm.scripts import read_script

SCRIPT = "#!/bin/sh\n#SBATCH --nodes=2\n"


@pytest.fixture
def folder() -> Generator[Path]:
    """The folder of a job, which everybody may enter."""
    with TemporaryDirectory(dir="/tmp") as made:
        Path(made).chmod(0o755)
        script = Path(made, "job.slurm")
        script.write_text(SCRIPT)
        script.chmod(0o644)
        yield Path(made)


def read(folder: Path | None, path: str, user: str = "") -> str:
    order = AttemptOrder(
        attempt_id="a",
        name="x",
        command=("sbatch", path),
        user=user,
        workdir=None if folder is None else str(folder),
    )
    return read_script(path, order)


def test_a_script_in_the_jobs_folder_is_read(folder: Path) -> None:
    assert read(folder, str(folder / "job.slurm")) == SCRIPT
    assert read(folder, "job.slurm") == SCRIPT
    assert read(folder, "job.slurm", user="mia") == SCRIPT


def test_no_other_file_of_the_server_is_read(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text(SCRIPT)
    (folder / "secret").write_text("token = 1")
    (folder / "link").symlink_to(other)
    os.mkfifo(folder / "pipe")
    (folder / "huge").write_bytes(b"#!" + bytes(4 << 20))
    faults = {
        str(other): "is not in the job's folder, workdir",
        f"../{other.name}": "is not below its folder",
        "secret": "does not begin with #!",
        "link": "is a link|below a link",
        "pipe": "is no regular file",
        "huge": "has more than 4,194,304 bytes",
    }
    for path, fault in faults.items():
        with pytest.raises(ProviderError, match=fault) as caught:
            read(folder, path)
        assert caught.value.error_code == "BAD_SCRIPT"
    with pytest.raises(ProviderError, match=r"workdir \(none\)"):
        read(None, str(other))


def test_users_name_only_what_everybody_may_read(folder: Path) -> None:
    (folder / "job.slurm").chmod(0o640)
    assert read(folder, "job.slurm") == SCRIPT
    with pytest.raises(ProviderError, match="not everybody may read it"):
        read(folder, "job.slurm", user="mia")
    (folder / "job.slurm").chmod(0o644)
    folder.chmod(0o750)
    with pytest.raises(ProviderError, match="not everybody may read it"):
        read(folder, "job.slurm", user="mia")
