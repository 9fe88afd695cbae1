"""Prompts as jobs, where servers and models come and go: none is lost, none keeps a
slot, and nothing else waits for them.
"""

import asyncio
import json
import time
from collections.abc import MutableMapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from fastapi import Request

from gpuyard.controller import owner_transitions
from gpuyard.controller.launching import Launching
from gpuyard.domain.errors import InvalidInputError, LedgerError
from gpuyard.domain.reasons import Reason
from gpuyard.domain.shape import Shape
from gpuyard.gateway.openai import Gateway
from gpuyard.gateway.request_queue import Replica
from gpuyard.resource_manager import fleet_snapshot
from gpuyard.resource_manager.prompts import Prompts
from tests.integration.resource_manager.conftest import Managed
from tests.support.ledger import failing_commits
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio

# What a prompt needed when it was a process that asked.
OLD = Shape(cpus=0.1, owned=True)


@pytest.fixture
def gpu_count() -> int:
    """One, so that a model has one server."""
    return 1


async def prompts(instance: Managed, *texts: str, **fields: Any) -> list[str]:
    """Submit these prompts; their ids."""
    bodies = [{"prompt": text, "model": "chat", **fields} for text in texts]
    return await instance.controller.requests.submit(bodies)


async def answer(instance: Managed, job_id: str) -> str:
    """The answer, once the prompt has completed."""
    row = await instance.until(job_id)
    assert row["state"] == "completed", row
    parts = instance.controller.logs.read(job_id)
    return b"".join([part.data async for part in parts]).decode()


async def load(instance: Managed) -> None:
    await instance.manager.models.load("chat")
    await eventually(lambda: ("chat", "ready") in instance.loaded, "the model")
    instance.chat.asked.clear()  # it was warmed up


def replica(instance: Managed) -> Replica:
    queues = instance.manager.residents.request_queues
    (found,) = queues.by_model["chat"].replicas.values()
    return found


def in_line(instance: Managed) -> int:
    queues = instance.manager.residents.request_queues
    return len(queues.by_model["chat"].waiting)


async def blocked(instance: Managed, *texts: str, **fields: Any) -> list[str]:
    """The ids of a prompt that is being answered, and of these behind it in line."""
    await load(instance)
    instance.chat.may_answer.clear()
    (first,) = await prompts(instance, "first")
    await instance.until(first, "running")
    others = await prompts(instance, *texts, **fields)
    await eventually(lambda: in_line(instance) == len(texts), "them to stand in line")
    return [first, *others]


async def test_a_server_that_starts_decides_once_for_all_that_it_asks_again(
    instance: Managed,
):
    jobs = await blocked(instance, *"abcdef")

    def states() -> list[str]:
        return [each["state"] for job in jobs for each in instance.attempts(job)]

    # A submission that a crash cut off would be repeated, and not queued again.
    waiting = ["running", *["pending"] * 6]
    await eventually(lambda: states() == waiting, "the ledger to know of all")
    instance.notes.clear()
    await instance.restart()
    instance.chat.may_answer.set()
    for job, text in zip(jobs, ["first", *"abcdef"], strict=True):
        assert await answer(instance, job) == f"re: {text}\n"
    kinds = [kind for kind, job in instance.notes if job in jobs]
    requeued = [at for at, kind in enumerate(kinds) if kind == "job.requeued"]
    first = requeued[0]
    assert requeued == list(range(first, first + len(jobs)))
    # The time without a server is not billed.
    assert instance.attempts(jobs[0])[0]["ran_s"] == 0.0


async def test_submissions_that_a_crash_cut_off_are_repeated_all_at_once(
    instance: Managed, monkeypatch: pytest.MonkeyPatch
):
    jobs = await prompts(instance, *"abc", held=True)
    await instance.controller.changes.release(jobs)
    await instance.crash()
    launched: list[int] = []
    launch = Launching.launch

    async def counted(launching: Launching, attempt_ids: Sequence[str]) -> None:
        launched.append(len(attempt_ids))
        await launch(launching, attempt_ids)

    monkeypatch.setattr(Launching, "launch", counted)
    await instance.start()
    for job, text in zip(jobs, "abc", strict=True):
        assert await answer(instance, job) == f"re: {text}\n"
    assert len(jobs) in launched


async def test_memory_that_is_read_again_holds_no_prompt_that_is_over(
    instance: Managed,
):
    first, second = await blocked(instance, "second")
    attempts = [instance.core.view.jobs[job].attempt_id for job in (first, second)]
    with failing_commits(instance.ledger.engine), pytest.raises(LedgerError):
        await instance.submit()
    known = instance.manager.prompts._prompts
    assert known.keys() == set(attempts)
    del instance.core.view.attempts[attempts[1] or ""]  # as if its end were committed
    instance.manager.reload()
    await eventually(lambda: in_line(instance) == 0, "it to leave the line")
    assert known.keys() == {attempts[0]}
    instance.core.reload()


# --- slots ---


async def a_request(
    instance: Managed, text: str, *, silent_s: float | None = None
) -> Any:
    """The answer of `/v1`, which nobody has read yet."""
    manager = instance.manager
    queues = manager.residents.request_queues
    why_not = manager.models.why_not
    gateway = Gateway(queues, manager.replicas, 20, why_not, silent_s)
    body = f'{{"model": "chat", "messages": [{{"content": "{text}"}}]}}'.encode()
    messages = [{"type": "http.request", "body": body}]

    async def receive() -> MutableMapping[str, Any]:
        return messages.pop() if messages else await asyncio.Future()

    scope: dict[str, Any] = {
        "type": "http",
        "method": "POST",
        "path": "/",
        "headers": [],
    }
    return await gateway.answer("chat/completions", Request(scope, receive))


async def test_a_client_that_leaves_before_the_first_byte_frees_its_slot(
    instance: Managed,
):
    response = await a_request(instance, "hello")
    assert replica(instance).busy == 1

    async def gone() -> MutableMapping[str, Any]:
        return {"type": "http.disconnect"}

    async def send(_: MutableMapping[str, Any]) -> None:
        await asyncio.sleep(0)

    await response({"type": "http", "method": "POST"}, gone, send)
    assert replica(instance).busy == 0


async def test_a_request_whose_model_says_nothing_is_told_so(instance: Managed):
    await load(instance)
    instance.chat.may_answer.clear()
    answer = await a_request(instance, "hello", silent_s=0.1)
    assert answer.status_code == 504
    error = json.loads(answer.body)["error"]
    assert error["code"] == "model_is_silent"
    assert "silent_s" in error["message"]
    assert replica(instance).busy == 0
    assert instance.chat.asked == ["hello"], "another try would take as long"


# --- prompts of older versions, and of models that are gone ---


async def old_prompt(instance: Managed, **fields: Any) -> str:
    """A prompt as an older version has queued it."""
    (job,) = await prompts(instance, "hello", held=True, **fields)
    live = instance.core.view.jobs[job]
    instance.core.emit([owner_transitions.reshaped(live, OLD, time.time())])
    await instance.core.committed()
    return job


async def test_an_old_prompt_that_waits_goes_to_its_model(instance: Managed):
    job = await old_prompt(instance)
    await instance.restart()
    await instance.controller.changes.release([job])
    assert await answer(instance, job) == "re: hello\n"


async def test_an_old_prompt_that_was_on_its_way_to_a_node_goes_to_its_model(
    instance: Managed,
):
    job = await old_prompt(instance)
    instance.host.deaf = True
    await instance.controller.changes.release([job])
    await eventually(lambda: instance.attempts(job), "its attempt")
    instance.host.deaf = False
    await instance.restart()
    assert await answer(instance, job) == "re: hello\n"
    orders = [attempt.order for attempt in instance.host.attempts.values()]
    assert job not in {order.job_id for order in orders}


async def test_an_old_prompt_that_a_node_loses_goes_to_its_model(instance: Managed):
    job = await old_prompt(instance)
    await instance.controller.changes.release([job])
    await instance.until(job, "running")
    await instance.restart()
    await instance.finish(job, stopped=Reason.PREEMPTED)
    assert await answer(instance, job) == "re: hello\n"


async def test_an_old_prompt_that_is_resumed_goes_to_its_model(instance: Managed):
    job = await old_prompt(instance)
    await instance.cancel(job)
    await instance.resume(job)
    assert await answer(instance, job) == "re: hello\n"


async def test_prompts_of_a_model_that_is_gone_wait_until_it_is_back(
    instance: Managed,
):
    jobs = await blocked(instance, "second")
    models = instance.settings.models
    for left in ({}, {"big": models["big"]}):
        instance.settings = instance.settings.model_copy(update={"models": left})
        await instance.restart()
        for job in jobs:
            await instance.until(job, "queued")
            why = instance.controller.requests.why(job)
            assert why and "chat, which is not in the settings" in why.summary
    instance.settings = instance.settings.model_copy(update={"models": models})
    instance.chat.may_answer.set()
    await instance.restart()
    assert await answer(instance, jobs[1]) == "re: second\n"


async def test_a_prompt_whose_model_went_while_it_was_sent_is_queued_again(
    instance: Managed,
):
    (job,) = await prompts(instance, "hello", held=True)
    models = instance.settings.models
    await instance.controller.changes.release([job])
    attempt = instance.core.view.jobs[job].attempt_id
    await instance.crash()
    assert attempt
    left = {"big": models["big"]}
    instance.settings = instance.settings.model_copy(update={"models": left})
    await instance.start()
    await instance.until(job, "queued")


# --- what others wait for ---


async def test_scripts_are_seen_behind_any_number_of_prompts(
    instance: Managed, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(fleet_snapshot, "_MAX_SCRIPTS", 2)
    instance.core.view.external_queues.by_name["prompts"].max_pending = 0
    await prompts(instance, *"abc")
    for _ in range(3):
        await instance.submit(resources={"gpus": 1})
    fleet = instance.manager.residents.fleet(time.monotonic())
    assert len(fleet.scripts) == 2  # the third has the GPU


@pytest.mark.parametrize("gpu_count", [2])
async def test_a_script_on_an_idle_gpu_waits_for_no_prompts(instance: Managed):
    """Though they came before it, are more urgent, and more than the queue of their model
    takes.
    """
    # It gives one GPU to models.
    await instance.restart_with(residency={"policy": "static"})
    instance.chat.may_answer.clear()
    jobs = await prompts(instance, *map(str, range(300)), priority=5)
    await eventually(lambda: in_line(instance) > 250, "the line to be full")
    script = await instance.submit(resources={"gpus": 1}, priority=1)
    await instance.begun(script)
    states = {instance.job(job)["state"] for job in jobs}
    assert {"queued", "assigned"} <= states
    await instance.finish(script)


async def test_an_urgent_prompt_takes_the_place_of_a_preemptible_script(
    instance: Managed,
):
    script = await instance.submit(resources={"gpus": 1}, preemptible=True)
    await instance.begun(script)
    (usual,) = await prompts(instance, "usual", priority=4)
    await eventually(lambda: in_line(instance) == 1, "it to stand in line")
    assert not instance.loaded, "only an urgent job preempts"
    (urgent,) = await prompts(instance, "urgent", priority=5)
    assert await answer(instance, urgent) == "re: urgent\n"
    assert await answer(instance, usual) == "re: usual\n"
    assert (await instance.until(script, "queued"))["reason"] == Reason.PREEMPTED
    await instance.manager.models.unload("chat")
    await instance.begun(script)
    await instance.finish(script)


async def test_an_urgent_prompt_wakes_no_model_beside_a_preemptible_script(
    instance: Managed,
):
    """Where the model sleeps, its server makes way for another one."""
    await instance.restart_with(residency={"policy": "lru"})
    await load(instance)
    script = await instance.submit(resources={"gpus": 1}, preemptible=True)
    await instance.begun(script)
    assert instance.loaded == [("chat", "asleep")]
    (urgent,) = await prompts(instance, "urgent", priority=5)
    assert await answer(instance, urgent) == "re: urgent\n"
    # It may run again by now: the idle model has made room for it.
    assert instance.attempts(script)[0]["reason"] == Reason.PREEMPTED


async def test_an_urgent_prompt_leaves_an_urgent_script_and_others_alone(
    instance: Managed,
):
    for fields in ({"preemptible": True, "priority": 5}, {}):
        script = await instance.submit(resources={"gpus": 1}, **fields)
        await instance.begun(script)
        (urgent,) = await prompts(instance, "urgent", priority=5)
        await eventually(lambda: in_line(instance) == 1, "it to stand in line")
        instance.core.schedule()
        assert not instance.loaded
        await instance.cancel(urgent)
        await eventually(lambda: in_line(instance) == 0, "it to leave the line")
        await instance.finish(script)


async def test_what_waits_for_a_model_is_counted_wherever_it_waits(instance: Managed):
    await blocked(instance, "second")
    instance.core.view.external_queues.by_name["prompts"].max_pending = 0
    await prompts(instance, "third", "fourth")
    (chat,) = [m for m in instance.manager.models.listing() if m["name"] == "chat"]
    assert chat["waiting"] == 3


async def test_a_server_that_stops_cancels_what_is_answered_and_keeps_what_waits(
    instance: Managed,
):
    first, second = await blocked(instance, "second")
    instance.core.is_stopping = True
    assert await instance.controller.requests.cancel_running() == 2  # and the model
    await eventually(lambda: not instance.core.view.attempts, "all to end")
    await instance.core.committed()
    assert instance.job(first)["state"] == "cancelled"
    assert instance.job(second)["state"] == "queued"


async def test_a_prompt_with_another_priority_stands_elsewhere_in_line(
    instance: Managed,
):
    jobs = await blocked(instance, "second", "third")
    await instance.controller.changes.update(jobs[2], {"priority": 5})
    await eventually(lambda: why(instance, jobs[1]).startswith("1 before"), "the move")
    assert why(instance, jobs[2]).startswith("it is the first")
    instance.chat.may_answer.set()
    for job in jobs:
        await instance.until(job)
    assert instance.chat.asked == ["first", "third", "second"]


def why(instance: Managed, job: str) -> str:
    attempt = instance.core.view.jobs[job].attempt_id
    return instance.manager.prompts.why_waiting(attempt or "")


async def test_the_wait_for_another_replica_counts_not_for_the_time_limit(
    instance: Managed,
):
    await load(instance)
    instance.chat.breaks.add("hello")
    (job,) = await prompts(instance, "hello", timeout_s=1.5)
    await eventually(lambda: instance.chat.asked, "it to be asked")
    one = replica(instance)
    await eventually(lambda: one.suspended and in_line(instance), "it to wait again")
    instance.chat.breaks.clear()
    began = time.monotonic()
    await eventually(lambda: time.monotonic() - began > 1.6, "more than its limit")
    instance.manager.residents.request_queues.put(one)
    assert await answer(instance, job) == "re: hello\n"
    (attempt,) = instance.attempts(job)
    assert attempt["ran_s"] < 1.5


async def test_a_prompt_refuses_what_it_cannot_heed(instance: Managed):
    with pytest.raises(InvalidInputError) as refused:
        await prompts(
            instance,
            "x",
            provider="fake",
            secrets={"A": "a"},
            resources={"cpus": 2},
            spot=True,
            environment={"PATH": "/bin", "B": "b"},
        )
    fields = [fault.field for fault in refused.value.faults]
    assert fields == ["resources", "secrets", "provider", "spot", "environment.B"]


async def test_a_prompt_that_is_resumed_refuses_gpus(instance: Managed):
    (job,) = await prompts(instance, "x", held=True)
    await instance.cancel(job)
    with pytest.raises(InvalidInputError) as refused:
        await instance.controller.requests.resume(job, None, {"gpus": {"count": 2}})
    assert [fault.field for fault in refused.value.faults] == ["gpus"]


async def test_the_job_of_the_model_pays_for_a_prompt(instance: Managed):
    (job,) = await prompts(instance, "x")
    await instance.until(job)
    (attempt,) = instance.attempts(job)
    assert (attempt["basis"], attempt["cost"]) == ("share", "0")
    assert float(attempt["price_per_hour"]) > 0


# --- models that fail ---


async def test_a_model_that_answers_500_is_asked_again_after_a_pause(instance: Managed):
    policy = replace(instance.core.policy, retry_base_s=0.6, retry_max_s=0.6)
    instance.core.policy = policy
    await load(instance)
    instance.chat.sick.add("hello")
    began = time.monotonic()
    (job,) = await prompts(instance, "hello", timeout_s=1.0)

    def summary() -> str:
        why = instance.controller.requests.why(job)
        return why.summary if why else ""

    await eventually(lambda: "asked again" in summary(), "the reason")
    assert "chat answered with status 500" in summary()
    assert replica(instance).busy == 0
    row = await instance.until(job)
    # Three tries with two pauses, which the time limit does not count.
    assert (row["state"], row["reason"]) == ("failed", "no_answer")
    assert instance.chat.asked == ["hello"] * 3
    assert time.monotonic() - began >= 1.2
    assert instance.attempts(job)[0]["ran_s"] < 1.0


async def test_a_prompt_that_is_answered_after_a_pause_no_longer_waits(
    instance: Managed,
):
    await load(instance)
    instance.chat.sick.add("hello")
    (job,) = await prompts(instance, "hello")
    await eventually(lambda: instance.chat.asked, "it to be asked")
    instance.chat.may_answer.clear()
    instance.chat.sick.clear()
    await eventually(lambda: len(instance.chat.asked) > 1, "it to be asked again")
    await eventually(
        lambda: instance.controller.requests.why(job) is None, "it to wait no more"
    )
    instance.chat.may_answer.set()
    assert await answer(instance, job) == "re: hello\n"


async def test_a_model_that_says_nothing_is_stuck(instance: Managed):
    await instance.restart_with(residency={"silent_s": 0.2})
    await load(instance)
    instance.chat.may_answer.clear()
    (job,) = await prompts(instance, "hello")
    row = await instance.until(job)
    assert (row["state"], row["reason"]) == ("failed", "no_answer")
    (attempt,) = instance.attempts(job)
    assert attempt["message"].startswith("chat said nothing for")
    assert replica(instance).busy == 0


async def test_a_model_whose_server_does_not_answer_is_not_said_to_be_busy(
    instance: Managed,
):
    await load(instance)
    assert "answers 1 at once" in instance.manager.models.why_busy("chat")
    replica(instance).suspended = True
    assert "does not answer" in instance.manager.models.why_busy("chat")


async def test_a_prompt_waits_for_the_server_on_its_gpu(instance: Managed):
    # The second GPU may have been there yesterday.
    gpus = {"gpus": {"count": 2, "uuid": ["GPU-node_1-0", "GPU-gone"]}}
    jobs = await blocked(instance, "second", resources=gpus)
    assert why(instance, jobs[1]).endswith("it waits for the server on GPU 0")
    instance.chat.may_answer.set()
    assert await answer(instance, jobs[1]) == "re: second\n"


async def test_prompts_that_prefer_a_busy_gpu_keep_no_other_from_the_line(
    instance: Managed, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Prompts, "max_pending", 1)
    await instance.restart()
    gpus = {"gpus": {"count": 1, "uuid": ["GPU-node_1-0"]}}
    await blocked(instance, "prefers it", resources=gpus)
    await prompts(instance, "prefers it, too", resources=gpus)
    await prompts(instance, "takes any")
    await eventually(lambda: in_line(instance) == 2, "the last to stand in line")


@pytest.mark.parametrize("ticks", range(4))
async def test_a_server_that_stops_ends_its_polls_whatever_happens_meanwhile(
    instance: Managed, ticks: int
):
    prompts = instance.manager.prompts
    polling = asyncio.create_task(prompts.news(60))
    await asyncio.sleep(0.05)
    prompts._changed.set()
    for _ in range(ticks):
        await asyncio.sleep(0)
    polling.cancel()
    await asyncio.wait([polling])
    assert polling.cancelled()
