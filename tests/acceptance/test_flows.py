"""Flows as people use them: only what has changed runs."""

import asyncio
import json
import subprocess
import tomllib
from functools import partialmethod
from pathlib import Path

import pytest

import gpuyard
from gpuyard.domain.errors import InvalidInputError
from gpuyard.flows.runner import StepEnd
from tests.support.instance import REAL_GPUYARD, TestInstance
from tests.support.receiver import receiver
from tests.support.wait import wait_until

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command here runs many jobs: on a busy machine that takes minutes."""
    patient = partialmethod(TestInstance.run, timeout=300)
    monkeypatch.setattr(TestInstance, "run", patient)


# Each step marks that it has run.
FLOW = """
[steps.clean]
command = ["sh", "-c", "echo clean >> marks; tr a-z A-Z < raw.txt > clean.txt"]
inputs = ["raw.txt"]
outputs = ["clean.txt"]

[steps.count]
command = ["sh", "-c", "echo count >> marks; wc -c < clean.txt > count.txt"]
inputs = ["clean.txt"]
outputs = ["count.txt"]

[steps.other]
command = ["sh", "other.sh"]
outputs = ["other.txt"]

[steps.report]
command = ["sh", "-c", "echo report >> marks; cat count.txt other.txt > report.txt"]
needs = ["count", "other"]
outputs = ["report.txt"]
"""


@pytest.fixture
def flow(instance: TestInstance) -> Path:
    (instance.work / "raw.txt").write_text("abc")
    (instance.work / "other.sh").write_text("echo other >> marks; echo o > other.txt")
    (instance.work / "flow.toml").write_text(FLOW)
    return instance.work


def marks(folder: Path) -> list[str]:
    """The steps that have run since the last call."""
    path = folder / "marks"
    lines = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return lines


def test_a_second_run_does_only_what_has_changed(
    instance: TestInstance, flow: Path
) -> None:
    with receiver() as there:
        whole = ("--notify", there.url, "--deadline", "8h")
        told = instance.ok("flow", "run", "flow.toml", *whole)
        (body,) = wait_until(there.bodies, what="the end to be told of")
    assert body["kind"] == "job.completed"
    ended = instance.ok("logs", body["job_id"]).splitlines()
    steps = ("clean", "count", "other", "report")
    assert sorted(ended) == [f"{step}: completed" for step in steps]
    deadlines = [job["deadline"] for job in instance.json("jobs")["items"]]
    assert (len(set(deadlines) - {None}), deadlines.count(None)) == (1, 1)
    assert "clean: running · it has not run yet" in told
    assert "report: completed" in told
    assert sorted(marks(flow)) == ["clean", "count", "other", "report"]
    assert (flow / "report.txt").read_text() == "3\no\n"

    again = json.loads(instance.ok("flow", "run", "flow.toml", "--json"))
    assert {step["state"] for step in again["steps"]} == {"cached"}
    assert marks(flow) == []

    (flow / "raw.txt").write_text("abcd")
    told = instance.ok("flow", "run", "flow.toml")
    assert marks(flow) == ["clean", "count", "report"]
    assert "clean: running · it or its inputs have changed" in told
    assert "other: cached" in told

    # Its content is as it was, so what reads it does not run again.
    (flow / "clean.txt").unlink()
    told = instance.ok("flow", "run", "flow.toml")
    assert "clean: running · clean.txt is gone" in told
    assert marks(flow) == ["clean"]

    # A script in the command counts as an input.
    (flow / "other.sh").write_text("echo other >> marks; echo new > other.txt")
    instance.ok("flow", "run", "flow.toml")
    assert marks(flow) == ["other", "report"]

    # What was done last counts, not what was done once.
    (flow / "raw.txt").write_text("abc")
    instance.ok("flow", "run", "flow.toml")
    assert marks(flow) == ["clean", "count", "report"]
    assert (flow / "report.txt").read_text() == "3\nnew\n"

    instance.ok("flow", "run", "flow.toml", "--force", "count")
    assert marks(flow) == ["count"]
    unknown = instance.run("flow", "run", "flow.toml", "--force", "x")
    assert "'x' is no step" in unknown.stderr


def test_two_steps_that_say_the_same_both_run(
    instance: TestInstance, flow: Path
) -> None:
    same = 'command = ["sh", "-c", "echo same >> marks"]\n'
    (flow / "flow.toml").write_text(f"[steps.a]\n{same}[steps.b]\n{same}")
    instance.ok("flow", "run", "flow.toml")
    assert marks(flow) == ["same", "same"]


def test_a_step_that_fails_stops_only_what_needs_it_and_is_tried_as_it_says(
    instance: TestInstance,
) -> None:
    folder = instance.work
    (folder / "flow.toml").write_text(
        '[steps.bad]\ncommand = ["sh", "-c", "echo bad >> marks; echo why; exit 3"]\n'
        'retry_count = 1\n[steps.after]\ncommand = ["true"]\nneeds = ["bad"]\n'
        '[steps.good]\ncommand = ["sh", "-c", "echo good >> marks"]\n'
        '[steps.liar]\ncommand = ["true"]\noutputs = ["never.txt"]\n'
    )
    with receiver() as there:
        usual = {"GPUYARD_DEFAULTS__NOTIFY": json.dumps([there.url])}
        done = instance.run("flow", "run", "flow.toml", env=usual)
        (body,) = wait_until(there.bodies, what="the end to be told of")
    assert body["kind"] == "job.failed"
    assert done.returncode == 1
    assert "after: skipped · bad has not completed" in done.stdout
    assert "good: completed" in done.stdout
    assert "liar: failed · it has not written never.txt" in done.stdout
    assert "step bad: failed · exit code 3; its last lines:\nwhy" in done.stderr
    assert sorted(marks(folder)) == ["bad", "bad", "good"]
    again = instance.run("flow", "run", "flow.toml")
    assert "bad: running · its last run was failed" in again.stdout
    assert "good: cached" in again.stdout


def test_bad_flows_are_one_error_and_nothing_runs(instance: TestInstance) -> None:
    def told(text: str) -> str:
        (instance.work / "bad.toml").write_text(text)
        done = instance.run("flow", "run", "bad.toml")
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1
        return done.stderr

    step = '\ncommand = ["true"]\n'
    circle = f'[steps.a]{step}needs = ["b"]\n[steps.b]{step}needs = ["a"]\n'
    assert "need one another in a circle: " in told(circle)
    lost = f'[steps.a]{step}[steps.b]{step}inputs = ["raw.csv"]\n'
    assert "steps.b.inputs: has raw.csv, and there is no such file" in told(lost)
    assert "is not valid" in told("[steps")
    assert instance.json("jobs")["items"] == []


def test_a_flow_is_checked_without_running_it(
    instance: TestInstance, flow: Path
) -> None:
    told = instance.ok("flow", "check", "flow.toml").splitlines()
    assert told[-1] == "report  after count, other"
    assert not marks(flow)


def test_a_flow_of_python_is_the_same_as_that_of_a_file(
    instance: TestInstance, flow: Path
) -> None:
    steps = tomllib.loads(FLOW)
    with instance.client() as client:
        done = gpuyard.run_flow(client, steps, flow)
        assert [end.state for end in done] == ["completed"] * 4
        assert "clean: cached" in instance.ok("flow", "run", "flow.toml")
        told: list[str] = []
        gpuyard.run_flow(
            client,
            steps,
            flow,
            tell=lambda end: told.append(f"{end.step} {end.state}"),
            force=["other"],
        )
        cached = [f"{step} cached" for step in ("clean", "count", "report")]
        assert sorted(told) == [
            *cached[:2],
            "other completed",
            "other running",
            cached[2],
        ]
        with pytest.raises(InvalidInputError, match="'x' is no step"):
            gpuyard.run_flow(client, steps, flow, force=["x"])
        with pytest.raises(InvalidInputError, match=r"steps\.a\.command"):
            gpuyard.run_flow(client, {"steps": {"a": {"command": "true"}}}, flow)


def test_a_flow_of_python_is_awaited_and_tells_of_its_end(
    instance: TestInstance, flow: Path
) -> None:
    instance.ok("up")
    told: list[str] = []

    async def run(address: str) -> list[StepEnd]:
        async with gpuyard.AsyncClient(instance.address()) as client:
            return await gpuyard.run_flow_async(
                client,
                tomllib.loads(FLOW),
                flow,
                tell=lambda end: told.append(f"{end.step} {end.state}"),
                deadline="8h",
                notify=[address],
            )

    with receiver() as there:
        done = asyncio.run(run(there.url))
        (body,) = wait_until(there.bodies, what="the end to be told of")
    assert [end.state for end in done] == ["completed"] * 4
    assert body["kind"] == "job.completed"
    assert "report completed" in told
    assert all(end.job and end.job.deadline for end in done)
    with pytest.raises(InvalidInputError, match="notify: "):
        asyncio.run(run("nobody"))


def test_a_flow_that_is_cancelled_begins_no_more_steps(
    instance: TestInstance, flow: Path
) -> None:
    instance.ok("up")
    waits = {"command": ["sh", "-c", "while [ ! -e go ]; do sleep 0.1; done"]}
    steps = {"first": waits, "second": {"command": ["true"], "needs": ["first"]}}

    async def cancel_it() -> None:
        begun = asyncio.Event()
        async with gpuyard.AsyncClient(instance.address()) as client:
            work = asyncio.create_task(
                gpuyard.run_flow_async(
                    client, {"steps": steps}, flow, tell=lambda _: begun.set()
                )
            )
            await begun.wait()
            work.cancel()
            await asyncio.wait([work])
            assert work.cancelled()

    asyncio.run(cancel_it())
    (flow / "go").touch()
    (job,) = instance.json("jobs")["items"]
    assert instance.wait(job["id"]).state == "completed"
    assert len(instance.json("jobs")["items"]) == 1


def test_a_flow_that_is_killed_goes_on_and_repeats_no_step(
    instance: TestInstance,
) -> None:
    folder = instance.work
    instance.ok("up")
    (folder / "flow.toml").write_text(
        '[steps.one]\ncommand = ["sh", "-c", "echo one >> marks; touch one"]\n'
        'outputs = ["one"]\n'
        '[steps.two]\ncommand = ["sh", "-c", "echo two >> marks;'
        ' while [ ! -e go ]; do sleep 0.1; done; touch two"]\n'
        'needs = ["one"]\noutputs = ["two"]\n'
        '[steps.three]\ncommand = ["sh", "-c", "echo three >> marks"]\n'
        'needs = ["two"]\n'
    )
    for _ in range(2):
        driving = subprocess.Popen(
            [*REAL_GPUYARD, "flow", "run", "flow.toml"],
            cwd=folder,
            env=instance.environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert driving.stdout
        while "two: running" not in (line := driving.stdout.readline()):
            assert line, "it ended"
        wait_until(
            lambda: "two" in (folder / "marks").read_text(), 240, "the second step"
        )
        driving.kill()
        driving.communicate()
    (folder / "go").touch()
    told = instance.ok("flow", "run", "flow.toml")
    assert "three: completed" in told
    assert marks(folder) == ["one", "two", "three"]


def test_outputs_that_cannot_be_written_fail_their_step_alone(
    instance: TestInstance,
) -> None:
    (instance.work / "flow.toml").write_text(
        'carry = true\n[steps.lost]\noutputs = ["place/of/a"]\n'
        'command = ["sh", "-c", "echo 1 > place/of/a"]\n'
        '[steps.good]\noutputs = ["b[1]"]\ncommand = ["sh", "-c", "echo 2 > b[1]"]\n'
    )
    in_the_way = instance.work / "place"
    in_the_way.write_text("a file")
    done = instance.run("flow", "run", "flow.toml")
    assert done.returncode == 1, done.stderr
    assert "lost: failed · its outputs cannot be written here: " in done.stdout
    assert f"{in_the_way}/of: Not a directory" in done.stdout
    assert "good: completed" in done.stdout
    in_the_way.unlink()
    told = instance.ok("flow", "run", "flow.toml").splitlines()
    assert sorted(told) == ["good: cached", "lost: cached"], "nothing runs again"
    assert (instance.work / "place/of/a").read_text() == "1\n"
