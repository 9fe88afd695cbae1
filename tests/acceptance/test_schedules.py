"""Schedules as people use them: `gpuyard run --schedule`, `gpuyard schedule`, a job
file, and the Python client.
"""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpuyard
from tests.support.instance import TestInstance, make_instance

# It is never due while a test runs.
NEVER = "0 0 29 2 *"


@pytest.fixture(scope="module")
def instance() -> Iterator[TestInstance]:
    with make_instance(TZ="Europe/Berlin") as made:
        made.ok("up")
        yield made


def test_a_schedule_runs_the_code_it_was_added_with_and_survives_a_crash(
    instance: TestInstance, tmp_path: Path
) -> None:
    (tmp_path / "nightly.py").write_text("print('as added')\n")
    words = ["run", "--schedule", NEVER, "--label", "team=a", "--", "nightly.py"]
    added = instance.run(*words, cwd=tmp_path)
    schedule_id = added.stdout.strip()
    assert added.returncode == 0, added.stderr
    assert "it runs next at 20" in added.stderr
    (tmp_path / "nightly.py").write_text("print('edited')\n")
    instance.kill("server")
    job_id = instance.ok("schedule", "run-now", "nightly.py").strip()
    assert instance.wait(job_id).state == "completed"
    assert instance.ok("logs", job_id) == "as added\n"
    labels = {"team": "a", "schedule": schedule_id}
    assert instance.json("show", job_id)["labels"] == labels
    listed = instance.json("jobs", "--schedule", schedule_id[-8:])["items"]
    assert [job["id"] for job in listed] == [job_id]
    (shown,) = instance.json("schedules")["items"]
    assert shown["timezone"] == "Europe/Berlin"
    assert (shown["last_job_id"], shown["last_job_state"]) == (job_id, "completed")
    assert "Europe/Berlin" in instance.ok("schedule", "show", schedule_id)
    assert "is paused" in instance.ok("schedule", "pause", schedule_id)
    assert instance.json("schedule", "show", schedule_id)["next_at"] is None
    resumed = instance.ok("schedule", "resume", schedule_id)
    assert "next at 20" in resumed
    updated = instance.json("schedule", "update", schedule_id, "--cron", "@yearly")
    assert updated["cron"] == "@yearly"
    instance.ok("schedule", "delete", schedule_id)
    assert instance.run("schedule", "show", schedule_id).returncode == 3
    deleted = instance.json("jobs", "--schedule", schedule_id)["items"]
    assert [job["id"] for job in deleted] == [job_id]


def test_a_job_file_and_a_wrong_one(instance: TestInstance, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    job = {"name": "report", "command": ["true"]}
    times = {"cron": NEVER, "timezone": "UTC", "overlap": "queue"}
    file.write_text(json.dumps({**job, "schedule": times}))
    schedule_id = instance.ok("submit", str(file)).strip()
    shown = instance.json("schedule", "show", schedule_id)
    assert (shown["name"], shown["overlap"]) == ("report", "queue")
    file.write_text(json.dumps({**job, "schedule": "0 25 * * *"}))
    wrong = instance.run("submit", str(file))
    assert wrong.returncode == 2
    assert "cron: its hour is '25' (write 0 to 23, such as" in wrong.stderr
    file.write_text(json.dumps([job, {**job, "schedule": NEVER}]))
    mixed = instance.run("submit", str(file))
    assert "in two commands" in mixed.stderr
    lonely = instance.run("run", "--overlap", "queue", "--", "true")
    assert "--overlap: belongs to --schedule" in lonely.stderr
    instance.ok("schedule", "delete", schedule_id)


def test_both_clients(instance: TestInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    with gpuyard.Client(instance.address()) as client:
        added = client.add_schedule(["true"], NEVER, name="sync")
        assert added.timezone == "America/New_York"
        assert [one.id for one in client.schedules()] == [added.id]
        assert client.change_schedule("sync", state="paused").next_at is None
        job = client.run_schedule("sync")
        client.job(job.id).wait(timeout=30)
        assert client.schedule("sync").last_job_id == job.id
        assert client.delete_schedule("sync").id == added.id

    async def program() -> None:
        async with gpuyard.AsyncClient(instance.address()) as client:
            added = await client.add_schedule(["true"], NEVER, name="async")
            assert [one.id for one in await client.schedules()] == [added.id]
            paused = await client.change_schedule("async", state="paused")
            assert paused.next_at is None
            job = await client.run_schedule("async")
            assert (await client.schedule("async")).last_job_id == job.id
            await client.delete_schedule("async")

    asyncio.run(program())
