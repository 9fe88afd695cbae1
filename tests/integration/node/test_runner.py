"""The runner, as an engine starts it: a process with a folder, and what it leaves
there.
"""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from gpuyard.providers.runner_archive import runner_archive
from tests.support.faults import Faults
from tests.support.wait import wait_until


def lay(folder: Path, *command: str, **order: Any) -> Path:
    """A folder with the runner and an order."""
    (folder / "runner.pyz").write_bytes(runner_archive())
    body = {
        "command": list(command),
        "share": list(command),
        "workdir": None,
        "environment": {},
        "gpus": False,
        "stdin": False,
        "timeout_s": None,
        "grace_s": 0.5,
        "checkpoint": {},
        "ids": {"GPUYARD_JOB_ID": "job_1"},
        **order,
    }
    (folder / "order.json").write_text(json.dumps(body))
    return folder


def start(folder: Path, *options: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, folder / "runner.pyz", folder, *options])


def end_of(folder: Path) -> dict[str, Any]:
    assert start(folder).wait(30) == 0
    found: dict[str, Any] = json.loads((folder / "exit.json").read_text())
    return found


def test_what_became_of_it_stands_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "stdin").write_bytes(b"from outside")
    code = "cat; echo; echo $GPUYARD_JOB_ID $MINE '[$CUDA_VISIBLE_DEVICES]' >&2; exit 7"
    end = end_of(
        lay(tmp_path, "sh", "-c", code, stdin=True, environment={"MINE": "$(x)"})
    )
    assert (end["exit_code"], end["reason"]) == (7, "")
    assert end["started_at"] <= end["ended_at"]
    assert (
        tmp_path / "log"
    ).read_text() == "from outside\njob_1 $(x) [$CUDA_VISIBLE_DEVICES]\n"


def test_a_copy_of_its_folder_is_unpacked_and_one_that_is_damaged_ends_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "data").write_text("from afar\n")
    lay(tmp_path, "cat", "data")
    with tarfile.open(tmp_path / "work.tar", "w") as copy:
        copy.add(tmp_path / "data", "data")
    assert end_of(tmp_path)["exit_code"] == 0
    assert (tmp_path / "log").read_text() == "from afar\n"

    damaged = tmp_path / "damaged"
    damaged.mkdir()
    lay(damaged, "cat", "data")
    (damaged / "work.tar").write_bytes(b"no archive")
    end = end_of(damaged)
    assert (end["exit_code"], end["reason"]) == (None, "workdir_missing")
    assert "cannot be unpacked: " in end["message"]


@pytest.mark.parametrize("jump_s", [7200, -7200])
def test_what_it_ran_is_measured_whatever_the_wall_clock_says(
    tmp_path: Path, jump_s: float
) -> None:
    faults = Faults(tmp_path)
    code = "while ! test -e go; do sleep 0.01; done"
    lay(tmp_path, "sh", "-c", code, workdir=str(tmp_path))
    began = time.monotonic()
    environment = {**os.environ, **faults.environment}
    run = subprocess.Popen(
        [sys.executable, tmp_path / "runner.pyz", tmp_path], env=environment
    )
    wait_until((tmp_path / "started.json").exists, what="its start")
    faults.clock_is_off(jump_s)
    (tmp_path / "go").touch()
    assert run.wait(30) == 0
    end = json.loads((tmp_path / "exit.json").read_text())
    assert abs(end["ended_at"] - end["started_at"]) > 3600, "the clock did jump"
    assert 0 < end["ran_s"] <= time.monotonic() - began


def test_the_processes_of_its_program_are_noted(tmp_path: Path) -> None:
    code = "sleep 600 & echo $! > child; while ! test -e go; do sleep 0.05; done"
    lay(tmp_path, "sh", "-c", code, workdir=str(tmp_path))
    run = start(tmp_path)
    note = tmp_path / "child"
    wait_until(lambda: note.exists() and note.read_text(), what="its child")
    child = int(note.read_text())

    def noted() -> dict[str, Any]:
        path = tmp_path / "processes.json"
        return json.loads(path.read_text()) if path.exists() else {"pids": []}

    wait_until(lambda: child in noted()["pids"], what="a note of it")
    found = noted()
    program = json.loads((tmp_path / "program.json").read_text())
    assert program["pid"] in found["pids"]
    assert found["host"] == socket.gethostname()
    (tmp_path / "go").touch()
    assert run.wait(30) == 0


def test_an_attempt_runs_once_however_often_it_is_started(tmp_path: Path) -> None:
    lay(tmp_path, "sh", "-c", "echo ran")
    runs = [start(tmp_path) for _ in range(5)]
    assert [run.wait(30) for run in runs] == [0] * 5
    wait_until((tmp_path / "exit.json").exists, what="its end")
    assert (tmp_path / "log").read_text() == "ran\n"
    assert (tmp_path / "again.json").exists()


@pytest.mark.parametrize(
    ("code", "exit_code", "tries"),
    [
        ("echo try; test -e again && exit 0; touch again; exit 3", 0, 2),
        ("echo try; exit 3", 3, 3),
    ],
)
def test_a_program_that_fails_runs_again_as_often_as_the_order_says(
    tmp_path: Path, code: str, exit_code: int, tries: int
) -> None:
    end = end_of(lay(tmp_path, "sh", "-c", code, retries=2))
    assert (end["exit_code"], end["reason"]) == (exit_code, "")
    assert (tmp_path / "log").read_text() == "try\n" * tries


def test_a_timeout_counts_from_the_first_run_and_is_the_end(tmp_path: Path) -> None:
    code = "sleep 0.2; exit 3"
    end = end_of(lay(tmp_path, "sh", "-c", code, retries=10_000, timeout_s=1.0))
    assert end["reason"] == "timed_out"


@pytest.mark.parametrize(
    ("command", "workdir", "reason", "said"),
    [
        (("no-such-program-7",), None, "command_not_found", "no-such-program-7"),
        (("/etc/passwd",), None, "not_executable", "/etc/passwd"),
        (("true",), "/no/such/folder", "workdir_missing", "/no/such/folder"),
        (("true", "nul\0byte"), None, "invalid_argument", "null byte"),
    ],
)
def test_what_cannot_be_started_says_why(
    tmp_path: Path, command, workdir, reason, said
) -> None:
    end = end_of(lay(tmp_path, *command, workdir=workdir))
    assert (end["exit_code"], end["reason"]) == (None, reason)
    assert said in end["message"]


def test_nothing_of_it_is_left_behind(tmp_path: Path) -> None:
    code = (
        "setsid sh -c 'echo $$ > child; exec sleep 600' & while [ ! -s child ]; do"
        " sleep 0.01; done"
    )
    end = end_of(lay(tmp_path, "sh", "-c", code, workdir=str(tmp_path)))
    assert end["exit_code"] == 0
    child = int((tmp_path / "child").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_one_that_takes_too_long_is_asked_to_save_then_ended(tmp_path: Path) -> None:
    code = (
        "import signal, time\nsignal.signal(signal.SIGUSR1, lambda *_:"
        " print('saving'))\n"
    )
    code += (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: time.sleep(0.05)"
    )
    end = end_of(
        lay(
            tmp_path,
            sys.executable,
            "-c",
            code,
            timeout_s=3,
            checkpoint={"signal": "USR1"},
        )
    )
    assert (end["exit_code"], end["reason"]) == (-signal.SIGKILL, "timed_out")
    assert (tmp_path / "log").read_text() == "saving\n"


def test_a_program_is_asked_to_save_only_once_it_can_hear_it(tmp_path: Path) -> None:
    code = (
        "import signal, sys, time\n"
        "time.sleep(0.5)\n"
        "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(print('saved')))\n"
        "while True: time.sleep(0.05)"
    )
    checkpoint = {"signal": "USR1", "every_s": 0.05}
    wrapped = f"{shlex.quote(sys.executable)} -c {shlex.quote(code)}; echo after"
    end = end_of(lay(tmp_path, "sh", "-c", wrapped, checkpoint=checkpoint))
    assert (end["exit_code"], end["reason"]) == (0, "")
    assert (tmp_path / "log").read_text() == "saved\nafter\n"


@pytest.mark.parametrize("word", [None, {"reason": "cancelled", "checkpoint": False}])
def test_it_leaves_when_it_is_told_and_says_who_wanted_that(
    tmp_path: Path, word: dict[str, Any] | None
) -> None:
    code = (
        "import signal, sys, time\nsignal.signal(signal.SIGUSR1, lambda *_:"
        " sys.exit(print('saved')))\n"
    )
    code += "print('here')\nwhile True: time.sleep(0.05)"
    run = start(
        lay(
            tmp_path,
            sys.executable,
            "-c",
            code,
            checkpoint={"signal": "USR1"},
            grace_s=20,
        )
    )
    log = tmp_path / "log"
    wait_until(lambda: log.exists() and log.read_text() == "here\n", what="it to run")
    if word:
        (tmp_path / "stop.json").write_text(json.dumps(word))
    run.send_signal(signal.SIGUSR1)
    assert run.wait(30) == 0
    end = json.loads((tmp_path / "exit.json").read_text())
    assert end["reason"] == (word["reason"] if word else "preempted")
    assert log.read_text() == ("here\n" if word else "here\nsaved\n"), (
        "a cancel does not ask for a checkpoint"
    )


def test_checkpoints_are_put_aside_whole(tmp_path: Path) -> None:
    code = (  # clocks are coarse
        "for i in 1 2 3 4 5; do echo $i > new; mv new step-$i.txt; done; sleep 0.02; "
    )
    code += "mkdir out-step-9; echo x > out-step-9/a"
    (tmp_path / "old-step-0.txt").write_text("not its work")
    lay(
        tmp_path,
        "sh",
        "-c",
        code,
        workdir=str(tmp_path),
        checkpoint={"path": "*step-*"},
    )
    end_of(tmp_path)
    listed = json.loads((tmp_path / "checkpoints.json").read_text())
    assert [item["step"] for item in listed] == [
        4,
        5,
        9,
    ], "the newest few, oldest first"
    assert [item["directory"] for item in listed] == [False, False, True]
    kept = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert kept == {item["file"] for item in listed}
    assert (tmp_path / "checkpoints" / listed[0]["file"]).read_text() == "4\n"


def test_a_link_is_no_checkpoint_and_is_copied_as_a_link(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "step-1.pt").write_text("secret")
    work = tmp_path / "work"
    work.mkdir()
    (work / "out").symlink_to(tmp_path / "disk")
    (tmp_path / "disk").mkdir()
    code = """
        mkdir out/step-9 && echo x > out/step-9/weights
        ln -s step-9 out/latest-step; ln -s "$SECRET" out/step-8
        ln -s "$SECRET"/step-1.pt out/step-9/far
        ln -s weights out/step-9/near; ln -s "$PWD"/out/step-9/weights out/step-9/whole
    """
    lay(
        tmp_path,
        "sh",
        "-c",
        code,
        workdir=str(work),
        environment={"SECRET": str(secret)},
        checkpoint={"path": "out/*step*"},
    )
    end_of(tmp_path)
    (listed,) = json.loads((tmp_path / "checkpoints.json").read_text())
    assert (listed["path"], listed["step"], listed["size"]) == ("out/step-9", 9, 2)
    copy = tmp_path / "checkpoints" / listed["file"]
    assert (copy / "far").is_symlink()
    assert (copy / "near").readlink() == Path("weights")
    assert (copy / "whole").readlink() == Path("weights")


@pytest.mark.parametrize("pattern", ["/etc/hostname", "../secret/*"])
def test_a_pattern_that_leads_out_finds_nothing(tmp_path: Path, pattern: str) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "x").write_text("secret")
    end_of(lay(tmp_path, "touch", "../secret/x", checkpoint={"path": pattern}))
    assert not (tmp_path / "checkpoints.json").exists()


def test_a_share_of_a_gang_leaves_with_the_jobs_own_code(tmp_path: Path) -> None:
    lay(tmp_path, "srun", "ignored", share=["sh", "-c", "echo $NODE_RANK; exit 9"])
    done = subprocess.run(
        [sys.executable, tmp_path / "runner.pyz", tmp_path, "--share"],
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, "SLURM_NODEID": "1"},
        check=False,
    )
    assert (done.returncode, done.stdout) == (9, "1\n")
    assert not (tmp_path / "exit.json").exists()


def test_where_no_signal_comes_it_looks_for_a_word_and_minds_its_limit(
    tmp_path: Path,
) -> None:
    code = (
        "import signal, sys, time\nsignal.signal(signal.SIGUSR1, lambda *_:"
        " sys.exit(print('saved')))\n"
    )
    code += "print('here')\nwhile True: time.sleep(0.05)"
    order: dict[str, Any] = {
        "watch": True,
        "checkpoint": {"signal": "USR1"},
        "grace_s": 20,
    }
    (tmp_path / "told").mkdir()
    told = lay(tmp_path / "told", sys.executable, "-c", code, **order)
    run = start(told)
    wait_until(
        lambda: (told / "log").exists() and (told / "log").read_text() == "here\n",
        what="it to run",
    )
    (told / "stop.json").write_text(
        json.dumps({"reason": "cancelled", "checkpoint": False})
    )
    assert run.wait(30) == 0
    assert json.loads((told / "exit.json").read_text())["reason"] == "cancelled"
    assert (told / "log").read_text() == "here\n"
    (tmp_path / "near").mkdir()
    near = lay(tmp_path / "near", sys.executable, "-c", code, **order, limit_s=83)
    assert end_of(near)["reason"] == "preempted", "it can go on from what it saves"
    assert (near / "log").read_text() == "here\nsaved\n"


def test_secrets_reach_the_program_only(tmp_path: Path) -> None:
    value = "planted-secret-value"
    secrets = tmp_path / "secrets.json"
    secrets.write_text(json.dumps({"HF_TOKEN": value}))
    code = 'test -e "$0" && echo left; echo "got $HF_TOKEN"; exit 3'
    end = end_of(lay(tmp_path, "sh", "-c", code, str(secrets)))
    assert end["exit_code"] == 3
    assert (tmp_path / "log").read_text() == f"got {'*' * len(value)}\n"
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert all(value.encode() not in path.read_bytes() for path in left)


def test_a_secret_in_a_long_log_is_hidden(tmp_path: Path) -> None:
    value = "planted-secret-value"
    (tmp_path / "secrets.json").write_text(json.dumps({"KEY": value}))
    code = "import os; print('x' * (2**20 - 7), end=''); print(os.environ['KEY'] * 3)"
    end_of(lay(tmp_path, sys.executable, "-c", code))
    log = (tmp_path / "log").read_bytes()
    assert value.encode() not in log
    assert len(log) == 2**20 - 7 + 3 * len(value) + 1
