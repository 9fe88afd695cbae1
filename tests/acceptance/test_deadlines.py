"""Deadlines, end to end: each way to give one, and each place that shows it."""

import time
from datetime import UTC, datetime

from tests.support.instance import TestInstance
from tests.support.web import http

HOUR = 3600.0
IN_2098 = datetime(2098, 12, 1, 18, tzinfo=UTC).timestamp()


def local_offset_s() -> float:
    """How far the local clocks are before UTC at that time."""
    offset = datetime.fromtimestamp(IN_2098).astimezone().utcoffset()
    assert offset is not None
    return offset.total_seconds()


def in_hours(at: float | None) -> float:
    """The hours from now until then, roughly."""
    assert at is not None
    return round((at - time.time()) / HOUR, 1)


def test_a_deadline_is_given_shown_and_changed(shared_instance: TestInstance):
    held = ("run", "-d", "--hold", "--name", "paper")
    job_id = shared_instance.ok(*held, "--deadline", "8h", "--", "true").split()[-1]
    assert in_hours(shared_instance.json("show", job_id)["deadline"]) == 8
    listed = shared_instance.json("jobs", "--name", "paper")["items"]
    assert in_hours(listed[0]["deadline"]) == 8
    shown = shared_instance.ok("show", job_id)
    assert "deadline" in shown
    why = shared_instance.ok("why", job_id)
    assert "Its deadline is " in why
    assert "How long it runs is not known." in why
    day = datetime.now().astimezone().replace(year=2098, microsecond=0)
    local = day.replace(tzinfo=None).isoformat(" ")
    updated = shared_instance.json("update", job_id, "--deadline", local)
    assert updated["deadline"] == day.timestamp()
    updated = shared_instance.json("update", job_id, "--deadline", "none")
    assert updated["deadline"] is None
    shared_instance.ok("cancel", job_id)
    # It does not follow: the job runs at once.
    resumed = shared_instance.json("resume", job_id, "--deadline", "3h")
    assert in_hours(resumed["deadline"]) == 3


def test_what_is_no_deadline_is_refused(shared_instance: TestInstance):
    for text, fault in (
        ("soon", "--deadline: 'soon' is no date with a time"),
        ("2020-01-01 09:00", "deadline: is 2020-01-01 "),
        ("2098-12-01", "--deadline: '2098-12-01' is no date with a time"),
    ):
        refused = shared_instance.run("run", "-d", "--deadline", text, "--", "true")
        assert refused.returncode in (2, 4)
        assert fault in refused.stderr
    refused = shared_instance.run(
        "run", "--schedule", "@daily", "--deadline", "2098-12-01 18:00", "--", "true"
    )
    assert "deadline_s: '2098-12-01 18:00' is not a duration" in refused.stderr


def test_jobs_of_schedules_and_tasks_of_arrays_have_deadlines(
    shared_instance: TestInstance,
):
    daily = ("run", "--schedule", "@daily", "--name", "nightly", "--deadline", "8h")
    shared_instance.ok(*daily, "--", "true")
    shown = shared_instance.ok("schedule", "show", "nightly")
    assert "8h00m after its time" in shown
    job_id = shared_instance.ok("schedule", "run-now", "nightly").strip()
    assert in_hours(shared_instance.json("show", job_id)["deadline"]) == 8
    updated = ("schedule", "update", "nightly", "--deadline", "none")
    assert shared_instance.json(*updated)["deadline_s"] is None
    shared_instance.ok("schedule", "delete", "nightly")
    array = ("run", "-d", "--hold", "--name", "many", "--array", "0-1", "--", "true")
    shared_instance.ok(*array)
    updated = shared_instance.json("update", "many", "--deadline", "5h")
    assert in_hours(updated["spec"]["deadline"]) == 5
    assert in_hours(shared_instance.json("show", "many_1")["deadline"]) == 5
    updated = shared_instance.json("update", "many", "--deadline", "none")
    assert "deadline" not in updated["spec"]
    shared_instance.ok("cancel", "many", job_id)


def test_an_estimate_says_that_there_is_too_little_time(
    shared_instance: TestInstance,
):
    asked = ("estimate", "--deadline", "2h", "--time", "3h")
    assert "3h00m, which is too long" in shared_instance.ok(*asked)
    assert shared_instance.json(*asked)["in_time"] is False


def test_files_programs_and_http_give_deadlines(shared_instance: TestInstance):
    head = 'command = ["true"]\nheld = true\n'
    file = shared_instance.work / "due.toml"
    for written, at in (
        ('"8h"', None),
        ("2098-12-01T18:00:00Z", IN_2098),
        ("2098-12-01T18:00:00", IN_2098 - local_offset_s()),
    ):
        file.write_text(f"{head}deadline = {written}\n")
        (job,) = shared_instance.json("submit", str(file))["items"]
        assert job["deadline"] == at if at else in_hours(job["deadline"]) == 8
    with shared_instance.client() as client:
        job = client.run(["true"], held=True, deadline="8h")
        assert in_hours(job.info.deadline) == 8
        local = job.update(deadline="2098-12-01 18:00")
        assert local.deadline == IN_2098 - local_offset_s()
        assert job.update(deadline=None).deadline is None
        array = client.run_array(["true"], "0-1", held=True, deadline="5h")
        deadlines = [task.deadline for task in client.jobs(array=array.id)]
        assert [in_hours(at) for at in deadlines] == [5, 5]
    with http(shared_instance) as web:
        for given, hours in (("8h", 8), ("2098-12-01T18:00:00Z", None)):
            body = {"command": ["true"], "held": True, "deadline": given}
            answer = web.post("/api/v1/jobs", json=body)
            assert answer.status_code == 201
            deadline = answer.json()["deadline"]
            assert in_hours(deadline) == hours if hours else deadline == IN_2098
