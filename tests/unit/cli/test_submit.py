"""Whether `gpuyard submit` gets job files or a program."""

import pytest

from gpuyard.cli.submit import is_program


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], False),
        (["--help"], False),
        (["--json"], False),
        (["-"], False),
        (["job.toml"], False),
        (["--json", "jobs.yaml", "more.json"], False),
        (["--", "job.toml"], False),
        (["jobs"], False),
        (["no-such-file.toml"], False),
        (["--", "python3", "train.py"], True),
        (["train.py", "--config", "job.toml"], True),
        (["--gpus", "1", "--", "train.py"], True),
        (["--json", "--name", "a", "train.sh"], True),
        (["sh"], True),
        (["./run"], True),
        (["no-such-program"], True),
    ],
)
def test_what_is_no_job_file_is_a_program(words, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs").write_text("command: [true]\n")
    (tmp_path / "run").write_text("#!/bin/sh\n")
    (tmp_path / "run").chmod(0o755)
    assert is_program(words) is expected
