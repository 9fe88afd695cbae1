"""Many jobs at once: find them, wait for them, cancel them."""

import httpx
import pytest

from tests.support.instance import REAL_GPUYARD, TestInstance
from tests.support.terminal import terminal
from tests.support.web import check_problem, http, spec


@pytest.fixture
def busy(instance: TestInstance) -> TestInstance:
    """An instance whose jobs wait behind one that holds all cores."""
    instance.ok("up")
    with instance.client() as client:
        client.submit_many([{"command": ["true"], "name": "first"}])
        client.job("first").wait(30)
        cpus = client.nodes()[0]["cpus"]
        blocker = {"command": ["sleep", "600"], "resources": {"cpus": cpus}}
        client.run(blocker, name="blocker", priority=5)
    instance.wait("blocker", "running")
    return instance


def submit_sweep(instance: TestInstance, count: int, label: str) -> list[str]:
    bodies = [
        {"command": ["true"], "name": f"sweep-{n}", "labels": {"sweep": label}}
        for n in range(count)
    ]
    with instance.client() as client:
        return [job.id for job in client.submit_many(bodies)]


def names(instance: TestInstance, *words: str) -> list[str]:
    return [job["name"] for job in instance.json("jobs", *words)["items"]]


def test_i_find_my_jobs_by_label_name_and_time(busy: TestInstance) -> None:
    submit_sweep(busy, 2, "7")
    submit_sweep(busy, 3, "8")
    assert names(busy, "--label", "sweep=7") == ["sweep-1", "sweep-0"]
    assert names(busy, "--label", "sweep=8", "--name", "*-2") == ["sweep-2"]
    assert names(busy, "--name=s*-0", "--state=queued") == ["sweep-0", "sweep-0"]
    assert len(names(busy, "--since", "1h")) == 7
    assert names(busy, "--since", "2125-01-01") == []
    refused = busy.run("jobs", "--since", "yesterday-ish")
    assert (refused.returncode, refused.stderr) == (
        2,
        "gpuyard: --since: 'yesterday-ish' is no time (write how long ago, such as 2h"
        " or '7 days ago', or a date such as 2026-11-25 or '2026-11-25 14:30')\n",
    )
    assert "label: is 'sweep' (write NAME=VALUE)" in (
        busy.run("jobs", "--label", "sweep").stderr
    )


def test_i_cancel_a_sweep_by_its_label_in_a_script(busy: TestInstance) -> None:
    kept = submit_sweep(busy, 2, "keep")
    submit_sweep(busy, 30, "drop")
    refused = busy.run("cancel", "--label", "sweep=drop")
    assert (refused.returncode, refused.stderr) == (
        2,
        "gpuyard: --yes: is missing, and here is nobody to ask (add --yes to cancel"
        " without a question)\n",
    )
    assert busy.ok("cancel", "--label", "sweep=drop", "--yes") == (
        "30 jobs: 30 cancelled\n"
    )
    assert busy.ok("cancel", "--label", "sweep=drop", "--yes") == (
        "No unfinished job matches.\n"
    )
    assert {busy.job(job_id).state for job_id in kept} == {"queued"}
    cancelled = busy.json("cancel", "--all", "--yes")["items"]
    assert {(job["was"], job["state"]) for job in cancelled} == {
        ("running", "cancelled"),
        ("queued", "cancelled"),
    }


def test_on_a_terminal_i_am_asked_with_a_count(busy: TestInstance) -> None:
    ids = submit_sweep(busy, 3, "7")
    with terminal(
        [*REAL_GPUYARD, "cancel", "--name", "sweep-*"],
        cwd=busy.work,
        env=busy.environment,
    ) as screen:
        screen.expect(r"Cancel 3 jobs \(3 queued\)\?")
        screen.type("n\r")
        assert screen.leave() == 1
    assert {busy.job(job_id).state for job_id in ids} == {"queued"}
    with terminal(
        [*REAL_GPUYARD, "cancel", "--all"], cwd=busy.work, env=busy.environment
    ) as screen:
        screen.expect(r"Cancel 4 jobs \(3 queued, 1 running\)\?")
        screen.type("y\r")
        assert screen.leave() == 0
    assert {busy.job(job_id).state for job_id in ids} == {"cancelled"}


def test_ten_thousand_are_cancelled_by_one_request(busy: TestInstance) -> None:
    ids = submit_sweep(busy, 10_000, "7")
    done = busy.ok("cancel", "-", input="\n".join(ids), timeout=300)
    assert done == "10000 jobs: 10000 cancelled\n"
    acts = busy.home.audit_log.read_text()
    assert acts.count("POST /api/v1/jobs:cancel") == 1
    assert acts.count("cancel") == 1


def test_i_wait_for_jobs_and_get_the_code_of_the_first_that_failed(
    instance: TestInstance,
) -> None:
    good = instance.submit(["sleep", "0.2"])
    bad = instance.submit(["sh", "-c", "exit 7"])
    worse = instance.submit(["sh", "-c", "kill -9 $$"])
    assert instance.run("wait", good).returncode == 0
    done = instance.run("wait", good, worse, bad)
    assert (done.returncode, done.stdout.splitlines()) == (
        137,
        [
            f"{good} completed",
            f"{worse} failed · killed_by_signal",
            f"{bad} failed · exit_code",
        ],
    )
    assert instance.run("wait", "-", input=f"{bad}\n{worse}\n").returncode == 7
    long = instance.submit(["sleep", "600"])
    late = instance.run("wait", good, long, "--timeout", "0.3s")
    assert (late.returncode, late.stdout, late.stderr) == (
        124,
        f"{good} completed\n",
        "gpuyard: 1 job not over yet\n",
    )
    assert instance.run("wait", "nobody").returncode == 125
    with terminal(
        [*REAL_GPUYARD, "wait", good, long],
        cwd=instance.work,
        env=instance.environment,
    ) as screen:
        screen.expect("1 completed, 1 (queued|assigned|running)")
        instance.ok("cancel", long)
        assert screen.leave() == 130


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ({}, "names no job"),
        ({"jobs": ["a"], "all": True}, "names jobs in more than one way"),
        ({"state": ["completed"]}, "a job that is completed is over"),
        ({"jobs": []}, "jobs"),
        ({"labels": {"a": "b"}}, "labels"),
    ],
)
def test_a_request_that_means_no_jobs_is_one_error(
    shared_instance: TestInstance, body: dict[str, object], fault: str
) -> None:
    with http(shared_instance) as web:
        answer = web.post("/api/v1/jobs:cancel", json=body)
        assert fault in check_problem(answer, 422, "invalid_input")["detail"]


@pytest.mark.parametrize("options", [[], ["--all", "--yes"]])
def test_an_empty_list_of_jobs_cancels_none(
    busy: TestInstance, options: list[str]
) -> None:
    done = busy.run("cancel", "-", *options, input="")
    assert (done.returncode, "standard input: names no job" in done.stderr) == (2, True)
    assert busy.job("blocker").state == "running"


def test_what_has_started_cannot_be_held_or_released(busy: TestInstance) -> None:
    held = busy.run("hold", "blocker")
    assert (held.returncode, "gpuyard cancel" in held.stderr) == (4, True)
    released = busy.run("release", "blocker")
    assert (released.returncode, "nothing to do" in released.stderr) == (4, True)
    changed = busy.run("update", "blocker")
    assert (changed.returncode, "--priority" in changed.stderr) == (2, True)


def test_nothing_is_cancelled_if_one_is_not_known(busy: TestInstance) -> None:
    with http(busy) as web:
        job: httpx.Response = web.post("/api/v1/jobs", json=spec(busy))
        body = {"jobs": [job.json()["id"], "nobody"]}
        answer = web.post("/api/v1/jobs:cancel", json=body)
        check_problem(answer, 404, "not_found")
    assert busy.job(job.json()["id"]).state == "queued"


def test_why_names_the_job_that_another_waits_for(busy: TestInstance) -> None:
    first = busy.ok("run", "--hold", "-d", "--name", "prepare", "--", "true").strip()
    second = busy.ok("run", "-d", "--after", first, "--", "true").strip()
    named = f"prepare ({first[-8:]})"
    assert busy.ok("why", second).startswith(f"It depends on {named} (queued).")


def test_i_hold_a_job_change_it_and_release_it(busy: TestInstance) -> None:
    held = busy.ok("run", "--hold", "-d", "--name", "nightly", "--", "true").strip()
    free = busy.submit(["true"])
    assert busy.ok("hold", "-", input=f"{free}\n") == f"{free} is held\n"
    assert "held; gpuyard release JOB" in busy.ok("jobs", "--name", "nightly")
    assert "queued (held; gpuyard release JOB)" in busy.ok("show", held)
    assert busy.ok("why", held).startswith("It is held by `gpuyard hold`")
    updated = busy.json(
        "update", held, "--priority", "5", "--timeout", "2h", "--name", "tonight"
    )
    assert (updated["priority"], updated["name"]) == (5, "tonight")
    assert busy.json("show", held)["spec"]["timeout_s"] == 7200
    busy.kill("server")
    busy.ok("up")
    busy.ok("cancel", "blocker")
    assert [job["held"] for job in busy.json("jobs", "--state=queued")["items"]] == [
        True,
        True,
    ]
    assert busy.ok("release", held, free).splitlines() == [
        f"{held} is released",
        f"{free} is released",
    ]
    assert busy.run("wait", held, free).returncode == 0
    late = busy.run("update", held, "--priority", "1")
    assert (late.returncode, late.stderr) == (
        4,
        f"gpuyard: Job {held} is over; only its name can change. `gpuyard resume` takes"
        " --priority, --timeout, --deadline and --gpus.\n",
    )
    assert "changes nothing" in busy.run("update", held).stderr


def test_i_resume_a_job_with_a_longer_time_limit(instance: TestInstance) -> None:
    job = instance.submit(["sh", "-c", "sleep 1.5; echo done"], timeout_s=0.2)
    assert instance.wait(job).state == "timed_out"
    done = instance.run("resume", job, "--timeout", "1h", "--priority", "4")
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert instance.job(job).priority == 4
