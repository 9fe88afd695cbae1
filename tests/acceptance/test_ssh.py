"""A shell in a running job, on a real terminal, and real ssh into it."""

import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.components import require
from tests.support.instance import REAL_GPUYARD, TestInstance
from tests.support.terminal import CTRL_C, terminal

SLEEP = "import time; time.sleep(600)"


@pytest.fixture
def job_id(shared_instance: TestInstance) -> Iterator[str]:
    """A job that runs until the test is over."""
    made = shared_instance.submit(
        [sys.executable, "-I", "-S", "-c", SLEEP], environment={"COLOUR": "deep blue"}
    )
    shared_instance.wait(made, "running")
    yield made
    shared_instance.ok("cancel", made)


def test_a_shell_has_a_terminal_and_ends_with_the_job(
    shared_instance: TestInstance, job_id: str
) -> None:
    with terminal(
        [*REAL_GPUYARD, "ssh", job_id], env=shared_instance.environment
    ) as shown:
        shown.expect(r"[#$] ")
        shown.type("stty size; echo it is $COLOUR in $PWD\n")
        shown.expect(rf"40 160\s+it is deep blue in {shared_instance.work}\s")
        shown.resize(30, 100)
        shown.press_until("stty size\n", "30 100")
        shown.type("echo st''arts; cat\n")
        shown.expect("starts")
        shown.type("hello\n")
        shown.expect(r"hello\s+hello")
        # What is typed before the shell asks again may be dropped.
        shown.press_until(CTRL_C, r"\^C\s+\S*[#$] ")
        shown.type("echo left with $?\n")
        shown.expect("left with 130")
        shared_instance.ok("cancel", job_id)
        shown.expect("has ended, and the command with it")
        assert shown.leave() != 0


def test_words_go_to_the_shell_of_the_job(
    shared_instance: TestInstance, job_id: str
) -> None:
    done = shared_instance.run("ssh", job_id, "echo $COLOUR;", "exit 3", input="")
    assert (done.returncode, done.stdout) == (3, "deep blue\n")
    wrong = shared_instance.run("ssh", "--config", job_id, "true")
    assert (wrong.returncode, "--config: takes no command" in wrong.stderr) == (2, True)
    missing = shared_instance.run("ssh", "nobody", input="")
    assert (missing.returncode, "nobody" in missing.stderr) == (125, True)


def test_ssh_itself_runs_commands_and_copies_files(
    shared_instance: TestInstance, job_id: str
) -> None:
    require("ssh", shutil.which("ssh") is not None)
    config = shared_instance.work / "ssh_config"
    config.write_text(shared_instance.ok("ssh", "--config", job_id))
    host = f"gpuyard-{job_id}"
    there = ["ssh", "-F", str(config), host, "echo $COLOUR; pwd; cat; exit 3"]
    done = subprocess.run(
        there,
        env=shared_instance.environment,
        input=b"typed\n",
        capture_output=True,
        timeout=60,
    )
    expected = f"deep blue\n{shared_instance.work}\ntyped\n".encode()
    assert (done.stdout, done.returncode) == (expected, 3), done.stderr
    local = shared_instance.work / "local.bin"
    local.write_bytes(bytes(range(256)) * 4000)
    copied = shared_instance.work / "copied.bin"
    subprocess.run(
        ["scp", "-F", str(config), local, f"{host}:{copied}"],
        env=shared_instance.environment,
        check=True,
        timeout=60,
    )
    assert copied.read_bytes() == local.read_bytes()
