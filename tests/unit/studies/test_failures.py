"""A job that failed says which rank failed, what that rank printed last, and what to
do.
"""

import json
import os
from pathlib import Path

import pytest

from gpuyard.studies.failures import JobFailure, find_failure

LOG = """\
0: loading
1: loading
1: Traceback (most recent call last):
1:   File "rank.py", line 3
1: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB
0: [Gloo] connection closed by peer
srun: error: node2: task 1: Exited with exit code 1
srun: Terminating StepId=7.0
slurmstepd: error: *** STEP 7.0 ON node1 CANCELLED ***
srun: error: node1: task 0: Terminated
"""


def failure_of(tmp_path: Path, text: str, reason: str = "") -> JobFailure:
    log = tmp_path / "slurm-7.out"
    log.write_text(text)
    return find_failure(tmp_path, log, reason)


def test_the_rank_that_failed_first_speaks(tmp_path: Path) -> None:
    failure = failure_of(tmp_path, LOG)
    assert failure.where == "rank 1 on node2"
    assert failure.log == str(tmp_path / "slurm-7.out")
    assert failure.lines[0] == "loading"
    assert failure.lines[3].startswith("torch.OutOfMemoryError: CUDA out of memory")
    assert failure.lines[4] == "srun: error: node2: task 1: Exited with exit code 1"
    assert not any("connection closed" in line for line in failure.lines)
    assert failure.advice.startswith("lower generation.batch_size")


def test_where_slurm_does_not_tell_the_earliest_error_of_a_rank_counts(
    tmp_path: Path,
) -> None:
    (tmp_path / "metrics").mkdir()
    for rank, ended_at, error in (
        (0, 9.0, "ConnectionError: closed"),
        (2, 8.0, "ModuleNotFoundError: No module named 'safetensors'"),
        (3, 7.0, None),
    ):
        report = {"rank": rank, "host": "n", "ended_at": ended_at, "error": error}
        (tmp_path / "metrics" / f"metrics_rank_{rank}.json").write_text(
            json.dumps(report)
        )
    (tmp_path / "metrics" / "metrics_rank_4.json").write_text("{")
    failure = failure_of(tmp_path, "no label\n")
    assert (failure.where, failure.lines) == ("rank 2 on n", ("no label",))
    assert failure.advice.startswith("install it for the interpreter slurm.python")


def test_without_slurm_the_log_of_the_ranks_own_node_speaks(tmp_path: Path) -> None:
    (tmp_path / "metrics").mkdir()
    report = {"rank": 3, "host": "pod-1", "ended_at": 1.0, "error": "CUDA broke"}
    (tmp_path / "metrics" / "metrics_rank_3.json").write_text(json.dumps(report))
    logs = [tmp_path / f"node-{number}.out" for number in range(2)]
    for number, log in enumerate(logs):
        log.write_text(f"this is node {number}\n")
    for config, said in (
        ({"gpus_per_node": 2}, 1),
        ({"gpus_per_node": 4}, 0),
        ({}, 0),
    ):
        (tmp_path / "exp_config.json").write_text(json.dumps(config))
        failure = find_failure(tmp_path, logs[0], "")
        assert failure.lines == (f"this is node {said}",)
        assert (failure.where, failure.log) == ("rank 3 on pod-1", str(logs[said]))


def test_a_rank_cannot_speak_for_srun(tmp_path: Path) -> None:
    forged = "0: 10 %\r0: 50 %\rsrun: error: node9: task 1: Exited with exit code 1\n"
    failure = failure_of(tmp_path, f"{forged}1: all is well\n")
    assert (failure.rank, failure.node) == (None, "")
    assert failure.lines[0].startswith("0: srun: error: node9")
    # An honest bar of progress shows what it showed last.
    assert failure_of(tmp_path, "0: 10 %\r20 %\r30 %\n").lines == ("0: 30 %",)


def test_without_any_rank_the_whole_log_speaks(tmp_path: Path) -> None:
    text = "".join(f"line {number}\n" for number in range(40))
    failure = failure_of(tmp_path, text + "x" * 999 + "\nbash: srun: command not found")
    assert failure.rank is None and failure.where == ""
    assert len(failure.lines) == 12
    assert max(map(len, failure.lines)) == 300
    assert failure.advice.startswith("correct slurm.python")


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("Slurm refused the job: Invalid generic resource (gres)", "slurm.gres"),
        ("Slurm refused the job: invalid partition specified: x", "slurm.partition"),
        ("timed_out: DUE TO TIME LIMIT", "slurm.time_limit"),
        ("exit code 3", "gpuyard study resume"),
    ],
)
def test_a_job_without_a_log_has_advice_too(
    tmp_path: Path, reason: str, advice: str
) -> None:
    failure = find_failure(tmp_path, tmp_path / "none.out", reason)
    assert failure.lines == () and advice in failure.advice


def test_what_a_manifest_holds_comes_back(tmp_path: Path) -> None:
    failure = failure_of(tmp_path, LOG)
    from dataclasses import asdict

    assert JobFailure.of(json.loads(json.dumps(asdict(failure)))) == failure
    assert JobFailure.of(None) is None


@pytest.mark.timeout(20)
def test_a_pipe_in_place_of_a_log_keeps_nobody_waiting(tmp_path: Path) -> None:
    log = tmp_path / "slurm-7.out"
    os.mkfifo(log)
    (tmp_path / "metrics").mkdir()
    os.mkfifo(tmp_path / "metrics" / "metrics_rank_0.json")
    failure = find_failure(tmp_path, log, "exit code 3")
    assert failure.lines == () and failure.rank is None
