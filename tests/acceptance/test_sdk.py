"""The SDK as a program uses it: `Client` and `AsyncClient` against a real server,
started when there is none.
"""

import asyncio
import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gpuyard
from gpuyard.client.connection import Address
from gpuyard.domain.errors import (
    CapacityError,
    GpuyardError,
    InvalidInputError,
    NotFoundError,
    RefusedError,
    UnauthorizedError,
    UnreachableError,
)
from tests.support.instance import TestInstance
from tests.support.wait import wait_until

COUNT = ["python3", "-c", "for n in range(3): print('line', n)"]
# Trains in steps, saves each, and dies once in the middle; a resume goes on from what
# was saved.
TRAIN = """
import os, pathlib, sys
saved = os.environ.get("GPUYARD_RESUME_FROM")
first = int(pathlib.Path(saved).read_text()) + 1 if saved else 0
for step in range(first, 6):
    print(f"step {step}: train loss {6 - step}.0, val loss {7 - step}.0", flush=True)
    partial = pathlib.Path("partial")
    partial.write_text(str(step))
    partial.rename(f"model_{step}.pt")
    if step == 3 and not saved:
        sys.exit(9)
"""


@pytest.fixture
def here(instance: TestInstance, monkeypatch: pytest.MonkeyPatch) -> TestInstance:
    """This process is a user's program in the work folder of a home where nothing runs
    yet.
    """
    monkeypatch.setenv("GPUYARD_HOME", str(instance.home.root))
    monkeypatch.delenv("GPUYARD_URL", raising=False)
    monkeypatch.chdir(instance.work)
    return instance


def test_the_example_of_the_guide_from_no_server_at_all(here: TestInstance) -> None:
    with gpuyard.Client() as instance:
        job = instance.run(COUNT, name="count", labels={"kind": "example"})
        assert list(job.logs()) == ["line 0", "line 1", "line 2"]
        assert job.wait(timeout=30).state == "completed"
        assert (job.info.name, job.info.labels) == ("count", {"kind": "example"})
        assert instance.job("count").id == instance.job(job.id[-8:]).id == job.id
        assert job.info.cost.basis == "list"
    assert here.pid("server")


def test_the_same_awaited(here: TestInstance) -> None:
    (here.work / "train.py").write_text(TRAIN)

    async def program() -> None:
        async with gpuyard.AsyncClient() as instance:
            job = await instance.run(
                ["python3", "train.py"], checkpoint={"path": "model_*.pt"}
            )
            assert [line async for line in job.logs()][
                -1
            ] == "step 3: train loss 3.0, val loss 4.0"
            failed = await job.wait()
            assert (failed.state, failed.exit_code) == ("failed", 9)
            await job.resume("model_2.pt")
            assert await anext(job.logs()) == "step 3: train loss 3.0, val loss 4.0"
            assert (await job.wait()).state == job.state == "completed"
            assert [
                point["step"] for point in (await job.metrics("val_loss"))["val_loss"]
            ] == [0, 1, 2, 3, 3, 4, 5]
            newest = (await job.checkpoints())[-1]
            assert (
                await instance.download(newest, here.work / "down")
            ).read_text() == "5"
            assert [found.id async for found in instance.jobs()] == [job.id]
            assert not (await job.why())["pending"]
            second, third = await instance.submit_many(
                [{"command": ["sleep", "60"]}, {"command": ["sleep", "60"]}]
            )
            ids = [second.id, third.id]
            assert await instance.cancel_jobs(*ids, job.id) == ids
            ends = await instance.wait_for(*ids)
            assert [end.state for end in ends] == ["cancelled", "cancelled"]
            assert {(await second.wait()).state, (await third.wait()).state} == {
                "cancelled"
            }
            held = await instance.run(["false"], held=True)
            assert (await held.update(priority=1)).priority == 1
            assert (await held.hold()).held
            assert not (await held.release()).held
            await held.wait()
            assert (await held.resume(priority=5)).priority == 5
            await instance.wait_for(held.id)
            kinds = [
                event["kind"]
                async for event in first_of(
                    instance.events(after=0, job=job.id), "attempt.started"
                )
            ]
            assert kinds[0] == "job.submitted"
            assert [
                len(await listing()) for listing in (instance.gpus, instance.nodes)
            ] == [
                0,
                1,
            ]

    asyncio.run(program())


async def first_of(events: Any, kind: str) -> Any:
    """Events up to the first of `kind`."""
    async for event in events:
        yield event
        if event["kind"] == kind:
            return


def test_a_training_is_stopped_resumed_and_its_results_fetched(
    shared_instance: TestInstance,
) -> None:
    (shared_instance.work / "train.py").write_text(TRAIN)
    with shared_instance.client() as instance:
        job = instance.run(
            {"command": ["python3", "train.py"], "workdir": str(shared_instance.work)},
            name="resumed",
            checkpoint={"path": "model_*.pt"},
        )
        assert job.wait(30).exit_code == 9
        job.resume()
        assert job.wait(30).state == "completed"
        assert len(job.info.attempts) == 2
        assert next(job.logs()) == "step 4: train loss 2.0, val loss 3.0"
        assert list(job.logs(attempt=1, lines=1)) == [
            "step 3: train loss 3.0, val loss 4.0"
        ]
        series = job.metrics()
        assert [point["value"] for point in series["train_loss"]] == [
            6.0,
            5.0,
            4.0,
            3.0,
            2.0,
            1.0,
        ]
        assert [point["step"] for point in series["val_loss"]] == list(range(6))
        saved = job.checkpoints()
        assert {c.path for c in saved} <= {f"model_{n}.pt" for n in range(6)}
        target = shared_instance.work / "fetched"
        target.mkdir()
        assert instance.download(saved[-1], target) == target / "model_5.pt"
        assert instance.download(saved[-1], target / "other.pt").read_text() == "5"
        assert sorted(path.name for path in target.iterdir()) == [
            "model_5.pt",
            "other.pt",
        ]


def test_waiting_has_a_limit_and_cancelling_an_end(
    shared_instance: TestInstance,
) -> None:
    with shared_instance.client() as instance:
        job = instance.run({"command": ["sleep", "60"]})
        with pytest.raises(TimeoutError, match="still"):
            job.wait(timeout=0.1)
        job.cancel()
        assert job.wait(60).state == "cancelled"
        assert job.cancel().state == "cancelled"


def test_jobs_submitted_together_wait_for_each_other_by_name(
    shared_instance: TestInstance,
) -> None:
    with shared_instance.client() as instance:
        last, first, middle = instance.submit_many(
            [
                {"name": "evaluate", "command": ["true"], "depends_on": ["train"]},
                {"name": "prepare", "command": ["true"]},
                {"name": "train", "command": ["false"], "depends_on": ["prepare"]},
            ]
        )
        assert [job.wait(30).state for job in (first, middle, last)] == [
            "completed",
            "failed",
            "failed",
        ]
        assert last.info.reason == "dependency_failed"
        assert last.info.attempts == []


def test_jobs_are_listed_over_pages_and_by_filter(
    shared_instance: TestInstance,
) -> None:
    with shared_instance.client() as instance:
        ids = [
            job.id
            for job in instance.submit_many(
                [{"name": "listed", "command": ["true"]} for _ in range(8)]
            )
        ]
        assert [job.id for job in instance.jobs(name="listed", limit=3)] == ids[::-1]
        instance.job(ids[0]).wait(30)
        wait_until(
            lambda: len(list(instance.jobs(name="listed", state=["completed"]))) == 8,
            what="all to be over",
        )
        assert list(instance.jobs(name="listed", state=["failed", "queued"])) == []


def test_many_jobs_are_found_cancelled_and_waited_for(
    shared_instance: TestInstance,
) -> None:
    with shared_instance.client() as instance:
        body = {"name": "many", "command": ["sleep", "60"]}
        one, two, three = instance.submit_many(
            [{**body, "labels": {"part": part}} for part in ("a", "b", "b")]
        )
        labelled = [job.id for job in instance.jobs(label={"part": "b"})]
        assert labelled == [three.id, two.id]
        ended = instance.cancel_jobs(name="ma*", label={"part": "b"})
        assert ended == [two.id, three.id]
        ends = instance.wait_for(*ended, timeout=30)
        assert [end.state for end in ends] == ["cancelled", "cancelled"]
        with pytest.raises(TimeoutError, match="not over after 0 s: 1"):
            instance.wait_for(one.id, two.id, timeout=0)
        assert instance.cancel_jobs(all=True) == [one.id]


def test_a_job_is_held_changed_and_released(shared_instance: TestInstance) -> None:
    with shared_instance.client() as instance:
        job = instance.run(["true"], held=True)
        assert job.info.held
        assert job.update(name="renamed", priority=4).name == "renamed"
        assert job.hold().held
        assert not job.release().held
        assert job.wait(30).priority == 4


def fail_with(
    code: Callable[[gpuyard.Client], Any],
    kind: type[GpuyardError],
    instance: TestInstance,
) -> GpuyardError:
    with instance.client() as client, pytest.raises(GpuyardError) as caught:
        code(client)
    assert type(caught.value) is kind
    return caught.value


def test_errors_come_back_as_the_classes_they_were(
    shared_instance: TestInstance,
) -> None:
    done = shared_instance.submit(["true"], idempotency_key="sdk")
    shared_instance.wait(done)
    cases: list[tuple[Callable[[gpuyard.Client], Any], type[GpuyardError]]] = [
        (lambda instance: instance.job("nobody"), NotFoundError),
        (
            lambda instance: list(instance.log_bytes("nobody", follow=True)),
            NotFoundError,
        ),
        (lambda instance: next(instance.events(job="nobody")), NotFoundError),
        (
            lambda instance: instance.run(["true"], resources={"gpus": {"count": 900}}),
            CapacityError,
        ),
        (lambda instance: instance.job(done).resume(), RefusedError),
        (lambda instance: instance.run(["false"], idempotency_key="sdk"), RefusedError),
        (
            lambda instance: instance.run(["true"], name=datetime.date(2026, 1, 1)),
            InvalidInputError,
        ),
        (
            lambda instance: instance.run(["true"], timeout_s=float("inf")),
            InvalidInputError,
        ),
    ]
    for code, kind in cases:
        assert fail_with(code, kind, shared_instance).message
    error = fail_with(
        lambda instance: instance.run(["true"], retrycount=1, retry_count=-1),
        InvalidInputError,
        shared_instance,
    )
    assert isinstance(error, InvalidInputError)
    assert {(fault.field, fault.remedy) for fault in error.faults} == {
        ("retrycount", "did you mean retry_count or retry_on?"),
        ("retry_count", "must be at least 0"),
    }
    with (
        shared_instance.client() as instance,
        pytest.raises(TypeError, match=r"\['echo', 'one'\]"),
    ):
        instance.run("echo one")


def test_a_wrong_token_and_a_server_that_is_away(shared_instance: TestInstance) -> None:
    url = shared_instance.address().url
    with (
        gpuyard.Client(Address(url, "wrong")) as instance,
        pytest.raises(UnauthorizedError),
    ):
        instance.nodes()
    nowhere = Address("http://127.0.0.1:1", "")
    with gpuyard.Client(nowhere) as instance:
        for code in (
            instance.nodes,
            lambda: next(instance.events()),
            lambda: next(instance.log_bytes("x")),
        ):
            with pytest.raises(UnreachableError, match="doctor"):
                code()

    async def program() -> None:
        async with gpuyard.AsyncClient(nowhere) as instance:
            with pytest.raises(UnreachableError):
                await instance.nodes()
            with pytest.raises(UnreachableError):
                await anext(instance.events())
        async with gpuyard.AsyncClient(Address(url, "wrong")) as instance:
            with pytest.raises(UnauthorizedError):
                await anext(instance.log_bytes("x"))

    asyncio.run(program())


def test_following_goes_on_where_it_was_when_the_server_is_killed(
    here: TestInstance,
) -> None:
    step = here.work / "step"
    script = f"echo one; while [ ! -e {step} ]; do sleep 0.05; done; echo two"
    with gpuyard.Client() as instance:
        job = instance.run(["sh", "-c", script])
        lines = job.logs()
        assert next(lines) == "one"
        here.kill("server")
        step.touch()
        assert list(lines) == ["two"]
        assert (job.wait(30).state, len(job.info.attempts)) == ("completed", 1)


def test_following_ends_with_an_error_when_no_server_comes_back(
    here: TestInstance,
) -> None:
    told: list[str] = []
    with gpuyard.Client(patience_s=3.0, tell=told.append) as instance:
        lines = instance.run(["sh", "-c", "echo one; exec sleep 300"]).logs()
        assert next(lines) == "one"
        here.ok("down", "--running", "leave")
        with pytest.raises(UnreachableError):
            next(lines)
        assert len(told) == 1 and told[0].endswith("Waiting for it.")


def test_an_async_program_goes_on_as_well(here: TestInstance) -> None:
    step = here.work / "step"
    script = f"echo one; while [ ! -e {step} ]; do sleep 0.05; done; echo two"

    async def program() -> list[str]:
        async with gpuyard.AsyncClient() as instance:
            job = await instance.run(["sh", "-c", script])
            found: list[str] = []
            async for line in job.logs():
                found.append(line)
                if line == "one":
                    await asyncio.to_thread(here.kill, "server")
                    step.touch()
            return found

    assert asyncio.run(program()) == ["one", "two"]


def test_every_form_of_work_and_every_character(
    shared_instance: TestInstance, tmp_path: Path
) -> None:
    text = "é中🙂" * 60_000
    (tmp_path / "wide.py").write_text(
        f"print('é中🙂' * {len(text) // 3})\nprint('end', end='')\n", encoding="utf-8"
    )
    command = ["python3", "wide.py"]
    environment = {"PYTHONIOENCODING": "utf-8"}
    with shared_instance.client() as instance:
        job = instance.run(
            gpuyard.JobSpec(
                command=tuple(command), workdir=str(tmp_path), environment=environment
            )
        )
        assert list(job.logs()) == [text, "end"]
        config = gpuyard.JobConfig(
            name="theirs",
            command=("echo", "text"),
            gpu_spec=gpuyard.GpuSpec(gpu_count=0),
        )
        assert list(instance.run(config).logs()) == ["text"]
