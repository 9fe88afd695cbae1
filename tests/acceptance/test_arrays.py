"""Arrays, as people use them: one job with many tasks."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator

import pytest

from gpuyard import AsyncClient
from gpuyard.domain.errors import IsArrayError, NotFoundError
from tests.support.forkserver import REAL_AGENT
from tests.support.instance import TestInstance, make_instance
from tests.support.wait import wait_until
from tests.support.web import check_problem, http, spec


@pytest.fixture(scope="module")
def ran(shared_instance: TestInstance) -> Iterator[TestInstance]:
    """An instance with an array one of whose tasks failed."""
    command = ["sh", "-c", "echo task {i} of $GPUYARD_ARRAY_INDEX; test {i} != 7"]
    done = shared_instance.run(
        "run", "--array", "1,4,7-9%2", "--name", "folds", "--label", "a=b", *command
    )
    assert done.returncode == 1
    assert "failed · 4 completed, 1 failed" in done.stderr
    yield shared_instance


def test_a_killed_server_loses_no_task_and_repeats_none() -> None:
    with make_instance(**{REAL_AGENT: "1"}) as instance:
        marks = instance.work / "marks"
        script = (
            "echo began $GPUYARD_ARRAY_INDEX {i} >> marks; sleep 0.2;"
            " echo ended $GPUYARD_ARRAY_INDEX {i} >> marks"
        )
        words = ("--array", "0-49%4", "--name", "many", "--cpus", "0.1")
        instance.ok("run", "-d", *words, "--", "sh", "-c", script)
        wait_until(
            lambda: marks.exists() and marks.read_text().count("ended") >= 10,
            what="some tasks to end",
        )
        instance.kill("server")
        instance.ok("wait", "many")
        lines = Counter(marks.read_text().splitlines())
        expected = [f"{word} {i} {i}" for word in ("began", "ended") for i in range(50)]
        assert lines == Counter(expected)
        counts = instance.json("show", "many")["counts"]
        assert counts == {"completed": 50}


def test_it_is_listed_as_one_line_and_opens_to_its_tasks(ran: TestInstance) -> None:
    (array,) = ran.json("jobs", "--label", "a=b")["items"]
    assert (array["kind"], array["name"], array["state"]) == (
        "array",
        "folds",
        "failed",
    )
    assert array["counts"] == {"completed": 4, "failed": 1}
    lines = ran.ok("jobs", "--name", "folds").splitlines()
    assert len(lines) == 2
    assert "folds [1,4,7-9]" in lines[1]
    assert "4 completed, 1 failed" in lines[1]
    assert ran.json("jobs", "--name", "folds", "--state", "queued")["items"] == []
    (failed,) = ran.json("jobs", "--array", "folds", "--state", "failed")["items"]
    assert (failed["array_id"], failed["array_index"]) == (array["id"], 7)
    short = array["id"][-8:]
    tasks = ran.ok("jobs", "--array", short).splitlines()[1:]
    assert [line.split()[0] for line in tasks] == [
        f"{short}_{i}" for i in (9, 8, 7, 4, 1)
    ]


def test_i_see_an_array_and_each_of_its_tasks(ran: TestInstance) -> None:
    shown = ran.ok("show", "folds")
    assert "so far     4 completed, 1 failed" in shown
    assert "tasks      1,4,7-9 (5)" in shown
    assert "limit      2 at once" in shown
    assert "exit_code" in shown
    assert ran.json("show", "folds")["spec"]["command"][2].startswith(
        "echo task {i} of"
    )
    assert "test 7 != 7" in ran.ok("show", "folds_7")
    assert ran.ok("logs", "folds_8") == "task 8 of 8\n"
    assert ran.json("why", "folds") == {
        "array_id": ran.json("show", "folds")["id"],
        "waiting": 0,
        "pending": False,
        "summary": "None of its tasks waits: 4 completed, 1 failed.",
        "state": "failed",
    }
    refused = ran.run("logs", "folds")
    assert (refused.returncode, refused.stderr) == (
        2,
        "gpuyard: 'folds' is an array of 5 jobs. Name one of them, such as folds_1.\n",
    )
    assert "has no task 5. Its tasks are 1,4,7-9." in ran.run("show", "folds_5").stderr


def test_waiting_for_an_array_is_waiting_for_its_tasks(ran: TestInstance) -> None:
    waited = ran.run("wait", "folds")
    assert waited.returncode == 1
    short = ran.json("show", "folds")["id"][-8:]
    assert f"{short}_7 failed · exit_code" in waited.stdout
    assert len(waited.stdout.splitlines()) == 5


def test_i_resume_what_failed_of_an_array(shared_instance: TestInstance) -> None:
    command = ["sh", "-c", "test -e ready-{i}"]
    words = ("--array", "0-2", "--name", "again", "--", *command)
    (shared_instance.work / "ready-1").touch()
    assert shared_instance.run("run", *words).returncode == 1
    for number in (0, 2):
        (shared_instance.work / f"ready-{number}").touch()
    refused = shared_instance.run("resume", "again", "--from", "3")
    assert "--from: is that of one job, and 'again' is an array" in refused.stderr
    resumed = shared_instance.run("resume", "again")
    assert (resumed.returncode, resumed.stdout) == (0, "")
    assert "completed · 3 completed" in resumed.stderr
    attempts = [len(job["attempts"]) for job in _tasks(shared_instance, "again")]
    assert attempts == [2, 1, 2]
    assert shared_instance.run("resume", "again").returncode == 4


def _tasks(instance: TestInstance, array: str) -> list[dict[str, object]]:
    return instance.json("jobs", "--array", array)["items"]


def test_i_hold_release_and_cancel_an_array(shared_instance: TestInstance) -> None:
    words = ("--array", "0-29%1", "--name", "long", "--", "sleep", "600")
    array_id = shared_instance.ok("run", "-d", "--hold", *words).strip()
    assert shared_instance.ok("release", "long") == "30 jobs: each is released\n"
    wait_until(
        lambda: shared_instance.json("show", "long")["counts"].get("running"),
        what="its first task to run",
    )
    why = shared_instance.ok("why", "long")
    assert "29 tasks of it wait; the first says:" in why
    assert "its array runs at most 1 at once" in why
    assert shared_instance.ok("hold", "long") == "29 jobs: each is held\n"
    assert shared_instance.ok("cancel", "long") == f"{array_id}: 30 cancelled\n"
    assert shared_instance.json("show", "long")["state"] == "cancelled"


def test_i_change_how_many_tasks_run_at_once(shared_instance: TestInstance) -> None:
    words = ("--array", "0-9%1", "--name", "slow", "--cpus", "0.1", "--", "sleep")
    array_id = shared_instance.ok("run", "-d", *words, "600").strip()
    told = shared_instance.ok("update", "slow", "--limit", "3", "--priority", "5")
    assert told == f"{array_id} is updated\n"
    wait_until(
        lambda: shared_instance.json("show", "slow")["counts"].get("running") == 3,
        what="three of its tasks to run",
    )
    updated = shared_instance.json("update", "slow", "--limit", "none")
    assert (updated["at_most"], updated["priority"]) == (None, 5)
    wait_until(
        lambda: shared_instance.json("show", "slow")["counts"] == {"running": 10},
        what="all its tasks to run",
    )
    refused = shared_instance.run("update", "slow_3", "--limit", "2")
    assert "--limit: is that of an array, and 'slow_3' is a job" in refused.stderr
    refused = shared_instance.run("update", "slow", "--name", "quick")
    assert "--name: is that of a job, and 'slow' is an array" in refused.stderr
    refused = shared_instance.run("update", "slow", "--limit", "0")
    assert (refused.returncode, "at_most: is 0" in refused.stderr) == (2, True)
    refused = shared_instance.run("hold", "slow")
    assert "None of its tasks waits in the queue." in refused.stderr
    shared_instance.ok("cancel", "slow")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--array", "5-2"), "array: has 5-2, which goes down (write 2-5)"),
        (("--array", "0-9%0"), "array: ends with %0"),
        (("--array", ""), "array: is empty"),
        (
            ("--array", "0-200000"),
            "has 200,001 tasks, and an array has at most 100,000",
        ),
        (("--array", "0-1", "-i"), "array: is given with interactive"),
        (("--array", "0-1", "--schedule", "@daily"), "--array: does not go with"),
        (("--array", "0-1", "--cpus", "-1"), "resources.cpus: is"),
    ],
)
def test_a_wrong_array_is_one_clear_error(
    shared_instance: TestInstance, words: tuple[str, ...], told: str
) -> None:
    refused = shared_instance.run("run", "-d", *words, "--", "true")
    assert refused.returncode == 2
    (line,) = refused.stderr.splitlines()
    assert told in line


def test_a_job_file_may_be_an_array(shared_instance: TestInstance) -> None:
    file = shared_instance.work / "array.json"
    job = {"name": "filed", "command": ["echo", "{i}"], "array": "0-1"}
    file.write_text(json.dumps(job))
    told = shared_instance.ok("estimate", str(file))
    assert "The figures are those of one of its 2 tasks" in told
    (array_id,) = shared_instance.ok("submit", str(file)).split()
    shared_instance.ok("wait", array_id)
    assert shared_instance.ok("logs", "filed_1") == "1\n"
    file.write_text(json.dumps([job, {"command": ["true"]}]))
    refused = shared_instance.run("submit", str(file))
    assert "array: is given for some of the jobs only" in refused.stderr


def test_the_http_interface_tells_arrays_from_jobs(ran: TestInstance) -> None:
    with http(ran) as api:
        body = {**spec(ran), "array": "0-1"}
        check_problem(api.post("/api/v1/jobs", json=body), 422, "invalid_input")
        check_problem(api.post("/api/v1/arrays", json=[body]), 422, "invalid_input")
        check_problem(api.get("/api/v1/jobs/folds"), 409, "is_array")
        check_problem(api.get("/api/v1/arrays/nobody"), 404, "not_found")
        for wrong in ({}, {"at_most": 0}, {"priority": None}, {"name": "x"}):
            answer = api.patch("/api/v1/arrays/folds", json=wrong)
            check_problem(answer, 422, "invalid_input")
        both = {"folded": True, "array": "folds"}
        check_problem(api.get("/api/v1/jobs", params=both), 422, "invalid_input")
        seen: list[str] = []
        cursor = {}
        while cursor is not None:
            params = {"folded": True, "limit": 1, **cursor}
            page = api.get("/api/v1/jobs", params=params).json()
            seen += [item["id"] for item in page["items"]]
            cursor = {"cursor": page["next"]} if page["next"] else None
        whole = api.get("/api/v1/jobs", params={"folded": True}).json()["items"]
        assert seen == [item["id"] for item in whole]
        arrays = api.get("/api/v1/arrays").json()["items"]
        assert [i for i in seen if i.startswith("array_")] == [a["id"] for a in arrays]


def test_both_python_clients_have_arrays(shared_instance: TestInstance) -> None:
    with shared_instance.client() as client:
        array = client.run_array(
            ["echo", "{i}"], "3-4", name="sdk", idempotency_key="s"
        )
        again = client.run_array(
            ["echo", "{i}"], "3-4", name="sdk", idempotency_key="s"
        )
        assert again.id == array.id
        assert array.wait(60).counts == {"completed": 2}
        assert list(array.task(4).logs()) == ["4"]
        assert sorted(task.array_index or 0 for task in array.tasks()) == [3, 4]
        assert client.array("sdk").state == "completed"
        assert array.update(at_most=3).at_most == 3
        assert next(client.arrays()).id == array.id
        assert array.why()["pending"] is False
        with pytest.raises(IsArrayError):
            client.job("sdk")
        with pytest.raises(NotFoundError):
            array.task(5)

    async def use() -> None:
        async with AsyncClient(shared_instance.address()) as client:
            array = await client.run_array(["sleep", "{i}00"], "1-3%1", name="async")
            await array.cancel()
            assert (await array.wait()).counts == {"cancelled": 3}
            assert len([task async for task in array.tasks()]) == 3
            assert (await anext(client.arrays())).id == array.id
            assert (await array.resume(priority=2)).left == 3
            assert (await array.update(at_most=2)).at_most == 2
            await array.hold()
            await array.release()
            await (await client.array("async")).cancel()
            await array.wait()
            assert (await (await array.task(1)).refresh()).priority == 2

    asyncio.run(use())
