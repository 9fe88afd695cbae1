"""Which commands are scripts that an interpreter runs."""

import json
from pathlib import Path

import pytest

from gpuyard.cli.interpreters import with_interpreter
from gpuyard.cli.job_files import read_jobs


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["train.py", "--lr", "1"], ["python3", "train.py", "--lr", "1"]),
        (["sub/train.py"], ["python3", "sub/train.py"]),
        (["train.sh"], ["bash", "train.sh"]),
        (["./train.sh"], ["bash", "./train.sh"]),
        (["./program.sh"], ["./program.sh"]),
        (["./missing.sh"], ["./missing.sh"]),
        (["true", "train.py"], ["true", "train.py"]),
    ],
)
def test_a_script_gets_its_interpreter_here_and_in_a_job_file(
    tmp_path: Path, words: list[str], expected: list[str]
) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("train.py", "train.sh", "sub/train.py", "program.sh"):
        (tmp_path / name).write_text("")
    (tmp_path / "program.sh").chmod(0o755)
    (tmp_path / "job.json").write_text(json.dumps({"command": words}))
    assert with_interpreter(words, tmp_path) == expected
    (job,) = read_jobs(tmp_path / "job.json")
    assert job.body["command"] == expected


def test_in_an_image_programs_are_what_the_image_says(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "job.json").write_text('{"command": ["train.py"], "image": "x:1"}')
    (job,) = read_jobs(tmp_path / "job.json")
    assert job.body["command"] == ["train.py"]
