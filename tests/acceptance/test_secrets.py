"""A secret in a job's environment reaches the job, and nothing else that anyone can
read.
"""

import json
from collections.abc import Iterator

import psutil
import pytest

from tests.support.instance import TestInstance
from tests.support.web import http, spec

SECRET = "hunter2hunter2"
SHELL = {"TOKEN": SECRET}
LEAK = (
    "import os, sys, time; time.sleep(float(sys.argv[1])); sys.exit(os.environ['TOKEN']"
    " != '" + SECRET[::-1] + "'[::-1])"
)


def said_by_gpuyard(instance: TestInstance) -> Iterator[tuple[str, str]]:
    """Everything gpuyard writes for people: its logs, the journal, each process's
    title.
    """
    for path in (*instance.home.logs.iterdir(), instance.home.node / "keeper.log"):
        yield path.name, path.read_text()
    yield "events", instance.ok("events", "--json")
    yield "metrics", http(instance).get("/metrics").text
    for process in psutil.process_iter(["cmdline", "name"]):
        yield (
            f"title of {process.pid}",
            " ".join([*(process.info["cmdline"] or ()), process.info["name"] or ""]),
        )


def test_it_reaches_the_job_and_no_log_event_or_title(
    shared_instance: TestInstance,
) -> None:
    """Passed by name, so that it stands on no command line of ours either; the job
    succeeds, fails, is cancelled.
    """
    (shared_instance.work / "leak.py").write_text(LEAK)
    run = ["run", "-d", "--env", "TOKEN", "--retries", "1", "--", "python3", "leak.py"]
    done, cancelled = (
        shared_instance.ok(*run, seconds, env=SHELL).strip() for seconds in ("0", "60")
    )
    failed = shared_instance.ok(
        "run",
        "-d",
        "--env",
        "TOKEN",
        "--",
        "python3",
        "-c",
        "import nothing",
        env=SHELL,
    ).strip()
    shared_instance.wait(cancelled, "running")
    for where, text in said_by_gpuyard(shared_instance):
        assert SECRET not in text, where
    shared_instance.ok("cancel", cancelled)
    assert [shared_instance.wait(job).state for job in (done, failed, cancelled)] == [
        "completed",
        "failed",
        "cancelled",
    ]
    for words in (
        ["jobs"],
        ["show", failed],
        ["why", done],
        ["events"],
        ["jobs", "--json"],
        ["doctor", "--json"],
    ):
        assert SECRET not in shared_instance.ok(*words)
    for where, text in said_by_gpuyard(shared_instance):
        assert SECRET not in text, where


@pytest.mark.parametrize(
    "words",
    [
        ["--env", "TOKEN", "--", "no-such-program"],
        ["--env", "TOKEN", "--env", "CUDA_VISIBLE_DEVICES=1", "--", "true"],
        ["--env", "TOKEN", "--env", "BAD NAME=1", "--", "true"],
        ["--env", "TOKEN", "--after", "nobody", "--", "true"],
        ["--env", "TOKEN", "-g", "900", "--", "true"],
        ["--env", f"BAD NAME={SECRET}", "--", "true"],
        ["--env", f"={SECRET}", "--", "true"],
        ["--env", f"GPUYARD_TOKEN={SECRET}", "--", "true"],
        ["--env", f"CUDA_VISIBLE_DEVICES={SECRET}", "--", "true"],
    ],
)
def test_no_error_of_the_command_repeats_it(
    shared_instance: TestInstance, words: list[str]
) -> None:
    done = shared_instance.run("run", "-d", *words, env=SHELL)
    assert done.returncode in (2, 4)
    assert done.stderr.startswith("gpuyard: ")
    assert SECRET not in done.stdout + done.stderr


@pytest.mark.parametrize(
    "environment",
    [
        SECRET,
        [SECRET],
        {"T": [SECRET]},
        {"T": {"x": SECRET}},
        {"T": f"{SECRET}\0"},
        {"T=": SECRET},
    ],
)
@pytest.mark.parametrize("form", ["JobSpec", "JobConfig"])
def test_no_error_over_http_repeats_it(
    shared_instance: TestInstance, environment: object, form: str
) -> None:
    body = spec(shared_instance, environment=environment)
    if form == "JobConfig":
        body = {
            "name": "job",
            "command": ["true"],
            "timeout_minutes": 1,
            "environment": environment,
        }
    with http(shared_instance) as web:
        answer = web.post("/api/v1/jobs", json=body)
        assert answer.status_code == 422
        assert answer.json()["faults"][0]["field"].startswith("environment")
        assert SECRET not in answer.text
        broken = json.dumps(body)[:-1]
        assert SECRET not in web.post("/api/v1/jobs", content=broken).text
