"""From nothing: one command starts the server, runs the job and hands its output and
its exit code on.
"""

import json

import pytest

from tests.support.instance import REAL_GPUYARD, TestInstance
from tests.support.terminal import CTRL_C, terminal


def test_run_starts_everything_and_prints_the_output(instance: TestInstance) -> None:
    done = instance.run("run", "--", "python3", "-c", "print(1)")
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert "completed" in done.stderr


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -9 $$"], 137),
        (["true"], 0),
        (["sh", "-c", "exit 255"], 255),
    ],
)
def test_the_jobs_exit_code_is_passed_on(
    shared_instance: TestInstance, command: list[str], code: int
) -> None:
    assert shared_instance.run("run", "--", *command).returncode == code


def test_a_timed_out_job_is_124_and_a_cancelled_one_130(
    shared_instance: TestInstance,
) -> None:
    assert (
        shared_instance.run("run", "--timeout", "0.5s", "--", "sleep", "60").returncode
        == 124
    )
    running = shared_instance.popen("run", "--name", "to-cancel", "--", "sleep", "60")
    shared_instance.wait("to-cancel", "running")
    shared_instance.ok("cancel", "to-cancel")
    assert running.wait(30) == 130


def test_gpuyards_own_fault_is_125_where_the_jobs_code_is_passed_on(
    shared_instance: TestInstance,
) -> None:
    assert shared_instance.run("run", "--", "no-such-program").returncode == 125
    assert shared_instance.run("logs", "-f", "no-such-job").returncode == 125
    assert shared_instance.run("logs", "no-such-job").returncode == 3


def test_every_listing_speaks_json(shared_instance: TestInstance) -> None:
    job_id = json.loads(
        shared_instance.ok("run", "--json", "--", "python3", "-c", "print(1)")
    )["id"]
    shared_instance.wait(job_id)
    for words in (
        ["jobs"],
        ["events"],
        ["gpus"],
        ["nodes"],
        ["tiers"],
        ["providers"],
        ["templates"],
        ["checkpoints", job_id],
        ["doctor"],
    ):
        document = shared_instance.json(*words)
        assert isinstance(document["items"], list), words
        assert "next" in document, words
    assert shared_instance.json("show", job_id)["state"] == "completed"
    assert shared_instance.json("why", job_id)["pending"] is False
    assert shared_instance.json("up")["started"] is False
    refused = shared_instance.run("llm", "nobody", "hello", "--json")
    assert (refused.returncode, refused.stderr) == (3, "")
    assert refused.stdout.count("\n") == 1
    assert json.loads(refused.stdout)["error"]["code"] == "not_found"


def test_a_job_is_found_by_the_end_of_its_id_and_by_its_name(
    shared_instance: TestInstance,
) -> None:
    job_id = shared_instance.submit(["true"], name="findable")
    assert shared_instance.json("show", job_id[-8:])["id"] == job_id
    assert shared_instance.json("show", "findable")["id"] == job_id


def test_a_command_reads_what_it_was_given(shared_instance: TestInstance) -> None:
    """A file of nearly a megabyte, and what is piped in; nobody is shown it who only
    looks at the job.
    """
    count = ["python3", "-c", "import sys; print(len(sys.stdin.read()))"]
    (shared_instance.work / "order").write_text("hush" * 240_000)
    assert (
        shared_instance.ok(
            "run", "--name", "reader", "--stdin", "order", "--", *count
        ).strip()
        == "960000"
    )
    assert (
        shared_instance.ok("run", "--stdin", "-", "--", "cat", input="é\nend")
        == "é\nend"
    )
    assert shared_instance.ok("run", "--", "cat", input="not meant for it") == ""
    shown = shared_instance.ok("show", "reader")
    assert "960 kB" in shown
    assert "hush" not in shown + shared_instance.ok("jobs") + shared_instance.ok(
        "jobs", "--json"
    ) + shared_instance.ok("events")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read"),
        (b"x" * 1_000_001, "more than the 1 MB"),
        (b"\xff", "is not UTF-8"),
    ],
)
def test_a_standard_input_that_cannot_be_sent_is_named(
    shared_instance: TestInstance, content: bytes | None, said: str
) -> None:
    name = f"input-{said.replace(' ', '-')}"
    if content is not None:
        (shared_instance.work / name).write_bytes(content)
    refused = shared_instance.run("run", "-d", "--stdin", name, "--", "true")
    assert refused.returncode == 2
    assert f"--stdin: {name}" in refused.stderr
    assert said in refused.stderr


def test_logs_whole_and_last_lines(shared_instance: TestInstance) -> None:
    job_id = shared_instance.submit(["sh", "-c", "seq 1 100; printf end"])
    shared_instance.wait(job_id)
    assert (
        shared_instance.ok("logs", job_id)
        == "".join(f"{n}\n" for n in range(1, 101)) + "end"
    )
    assert shared_instance.ok("logs", job_id, "-n", "2") == "100\nend"
    assert shared_instance.ok("logs", job_id, "-n", "0") == ""


def test_a_script_runs_in_the_folder_it_is_started_from(
    shared_instance: TestInstance,
) -> None:
    (shared_instance.work / "helper.py").write_text("WORD = 'from my own module'\n")
    (shared_instance.work / "main.py").write_text(
        "import os\nfrom helper import WORD\nprint(WORD, os.getcwd())\n"
    )
    assert (
        shared_instance.ok("run", "main.py").strip()
        == f"from my own module {shared_instance.work}"
    )


def test_a_shell_script_runs_as_sbatch_takes_it(shared_instance: TestInstance) -> None:
    script = shared_instance.work / "train.sh"
    script.write_text("echo $0 got $1\n")
    assert shared_instance.ok("run", "train.sh", "x") == "train.sh got x\n"
    job_id = shared_instance.ok("submit", "train.sh", "y").strip()
    shared_instance.wait(job_id)
    assert shared_instance.ok("logs", job_id) == "train.sh got y\n"


def test_down_refuses_while_a_job_runs_and_leaves_it_running_when_told(
    instance: TestInstance,
) -> None:
    job_id = instance.submit(["sh", "-c", "sleep 4; echo survived"])
    instance.wait(job_id, "running")
    refused = instance.run("down")
    assert refused.returncode == 4
    assert "--running" in refused.stderr
    assert "down" in instance.ok("down", "--running", "leave")
    assert instance.ok("logs", "-f", job_id) == "survived\n"
    assert instance.job(job_id).state == "completed"
    assert len(instance.job(job_id).attempts) == 1


def test_down_without_a_server_says_so(instance: TestInstance) -> None:
    assert "No gpuyard server runs" in instance.ok("down")


def test_help_and_version_are_instant_because_nothing_slow_is_imported(
    instance: TestInstance,
) -> None:
    import subprocess
    import sys

    program = (
        "import sys\nfrom gpuyard.cli.main import app\ntry:\n app(['--help'])\nexcept"
        " SystemExit:\n pass\nslow = {'httpx', 'rich', 'fastapi', 'pydantic',"
        " 'sqlalchemy'} & set(sys.modules)\nsys.exit(f'imported: {slow}' if slow else"
        " 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert instance.ok("--version").startswith("gpuyard ")


def test_a_port_that_a_running_server_does_not_have_is_refused(
    shared_instance: TestInstance,
) -> None:
    url = shared_instance.address().url
    port = url.rsplit(":", 1)[-1]
    assert url in shared_instance.ok("up", "--port", port)
    assert url in shared_instance.ok("up", "--port", "0")
    refused = shared_instance.run("up", "--port", "9")
    assert (refused.returncode, refused.stderr) == (
        4,
        f"gpuyard: A server of this home runs at {url}, not on port 9. Stop it with"
        " `gpuyard down`.\n",
    )


def test_the_first_command_of_all_sees_the_node(instance: TestInstance) -> None:
    assert len(instance.json("nodes")["items"]) == 1


def test_top_shows_a_job_without_gpus_and_ends_with_q_and_ctrl_c(
    instance: TestInstance,
) -> None:
    job = instance.submit(["sleep", "600"], name="on-cores")
    instance.wait(job, "running")
    assert "on-cores" in instance.ok("top")
    for key in ("q", CTRL_C):
        with terminal(
            [*REAL_GPUYARD, "top"],
            cwd=instance.work,
            env={**instance.environment, "TERM": "xterm"},
        ) as screen:
            screen.expect("on-cores")
            screen.type(key)
            assert screen.leave() == 0
