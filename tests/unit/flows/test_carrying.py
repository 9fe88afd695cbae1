"""What a shell does before the program of a carried step begins."""

import subprocess
from pathlib import Path

from gpuyard.domain.dataset_names import DatasetReference
from gpuyard.flows.carrying import preparation


def test_inputs_are_laid_out_and_folders_of_outputs_made(tmp_path: Path) -> None:
    stored = tmp_path / "stored"
    (stored / "data").mkdir(parents=True)
    small = stored / "data" / "two words.txt"
    small.write_text("small")
    small.chmod(0o444)
    with (stored / "large.bin").open("wb") as large:
        large.truncate((16 << 20) + 1)
    here = tmp_path / "here"
    here.mkdir()
    reference = DatasetReference(None, "flow-a", 1)
    script = preparation(reference, ["out/deep/model.bin", "report.txt"])
    for _ in range(2):  # the program may be tried again in one folder
        done = subprocess.run(
            ["sh", "-c", f"{script}pwd"],
            cwd=here,
            env={"PATH": "/usr/bin:/bin", reference.variable: str(stored)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, f"{here}\n"), done.stderr
    copied = here / "data" / "two words.txt"
    assert copied.read_text() == "small"
    assert copied.stat().st_mode & 0o200, "it may be changed"
    assert (here / "large.bin").readlink() == stored / "large.bin"
    assert (here / "out" / "deep").is_dir()


def test_a_step_that_reads_nothing_needs_no_dataset() -> None:
    assert preparation(None, ["a.txt"]) == ""
    assert preparation(None, ["an out/a.txt"]) == "mkdir -p -- 'an out'\n"
