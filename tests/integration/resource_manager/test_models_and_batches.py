"""Models that load, sleep, wake and fail, and batches that make them leave."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuyard.domain.batches import BatchMode, BatchSpec, ItemSpec
from gpuyard.domain.errors import RefusedError
from gpuyard.gateway.request_queue import QueuedRequestTerms
from gpuyard.resource_manager import resident
from tests.integration.resource_manager.conftest import MODEL, Managed
from tests.support.fake_provider import FakeHost
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio


def batch(folder: Path, count: int, mode: BatchMode) -> BatchSpec:
    items = tuple(ItemSpec(path=f"/items/{number}") for number in range(1, count + 1))
    return BatchSpec(
        script="count", items=items, source="/items", results=str(folder), mode=mode
    )


async def submit(instance: Managed, spec: BatchSpec) -> str:
    return (await instance.manager.batches.submit(spec))["batch_id"]


async def work(instance: Managed, batch_id: str) -> None:
    """Let every worker do its items, and end."""
    batches = instance.manager.batches

    async def one(attempt_id: str, job_id: str) -> None:
        done = None
        while order := await batches.take(batch_id, attempt_id, done, None):
            done = {"number": order["number"], "attempts": order["attempts"]}
        await instance.finish(job_id)

    while batches.summary(batch_id)["state"] == "running":
        workers = instance.workers(batch_id)
        await asyncio.gather(*(one(*worker) for worker in workers.items()))
        await asyncio.sleep(0.01)


def over(instance: Managed, batch_id: str) -> Any:
    shown = instance.manager.batches.show(batch_id)
    return shown if shown["state"] in ("completed", "failed", "cancelled") else None


def soon() -> QueuedRequestTerms:
    return QueuedRequestTerms(deadline=time.monotonic() + 60.0)


async def test_a_request_loads_a_model_and_unload_ends_it(instance: Managed):
    queues = instance.manager.residents.request_queues
    replica = await queues.acquire("chat", soon())
    assert instance.loaded == [("chat", "ready")]
    queues.release(replica, 0.1)
    (listed,) = [m for m in instance.manager.models.listing() if m["name"] == "chat"]
    assert (listed["state"], listed["answered"]) == ("ready", 1)
    await instance.manager.models.unload("chat")
    await eventually(lambda: not instance.loaded, "the model to be unloaded")


async def test_a_model_that_falls_asleep_ends_if_it_is_unloaded_meanwhile(
    instance: Managed,
):
    await instance.manager.models.load("chat")
    await eventually(lambda: instance.loaded == [("chat", "ready")], "the model")
    servers = instance.manager.residents.servers
    (resident,) = servers.live.values()
    servers.sleep_or_unload(resident)
    await instance.manager.models.unload("chat")
    await eventually(lambda: not instance.loaded, "the model to be unloaded")


async def test_a_clock_that_is_set_while_a_model_boots_changes_nothing(
    instance: Managed,
):
    instance.deaf_servers = True
    await instance.manager.models.load("chat")
    (resident,) = instance.manager.residents.servers.live.values()
    await eventually(lambda: resident.booted_here, "a look before the server answers")
    core = instance.controller.core
    await eventually(lambda: core.view.jobs[resident.job_id].started_at, "the start")
    clock = core.clock
    core.clock = lambda: clock() + 3600
    instance.deaf_servers = False
    await eventually(lambda: instance.loaded == [("chat", "ready")], "the model")
    (listed,) = [m for m in instance.manager.models.listing() if m["name"] == "chat"]
    assert listed["boot_s"] < 3600


async def test_a_server_that_starts_finds_its_models(instance: Managed):
    await instance.manager.models.load("chat")
    await eventually(lambda: instance.loaded == [("chat", "ready")], "the model")
    await instance.restart()
    await eventually(lambda: instance.loaded == [("chat", "ready")], "the model again")
    assert len(instance.servers) == 1


@pytest.mark.parametrize(
    "models",
    [
        {},
        {"other": MODEL},
        {"chat": {**MODEL, "command": ["serve", "--fast", "{port}"]}},
        {"chat": {**MODEL, "environment": {"FAST": "1"}}},
        {"chat": {"command": ["serve", "{port}"], "memory_gb": 12, "gpus": 2}},
    ],
)
async def test_a_server_that_starts_with_other_settings_leaves_no_orphan(
    instance: Managed, models
):
    await instance.manager.models.load("chat")
    await eventually(lambda: instance.loaded == [("chat", "ready")], "the model")
    await instance.restart_with(models=models)
    await eventually(
        lambda: not any(each.live for each in instance.host.attempts.values()),
        "the server of the model to end",
    )
    assert instance.loaded == []


async def test_a_model_with_the_same_server_is_adopted_under_other_settings(
    instance: Managed,
):
    await instance.manager.models.load("chat")
    await eventually(lambda: instance.loaded == [("chat", "ready")], "the model")
    model = {**MODEL, "slots": 4, "pinned": True, "boot_s": 9}
    await instance.restart_with(models={"chat": model})
    await eventually(lambda: instance.loaded == [("chat", "ready")], "the model again")
    assert len(instance.servers) == 1


async def test_the_state_file_tells_the_truth_at_the_end(instance: Managed, tmp_path):
    path = tmp_path / "gpu_state.json"
    instance.manager.keep_gpu_state(path)

    def states() -> list[str]:
        gpus = json.loads(path.read_text())["gpus"] if path.exists() else {}
        return sorted(gpu["state"] for gpu in gpus.values())

    await instance.manager.models.load("chat")
    await eventually(lambda: states() == ["idle", "llm_ready"], "the model")
    # As `gpuyard down` does, at once.
    await instance.manager.residents.leave()
    await instance.manager.close()
    assert states() == ["idle", "idle"]
    document = json.loads(path.read_text())
    assert document["queues"] == {"llm": 0, "script": 0}
    assert document["boot_times"]["whisper:small.en"] == 5.0


async def test_prompts_and_scripts_are_counted_by_themselves(instance: Managed):
    await instance.restart_with(residency={"policy": "lru"})
    for _ in range(2):
        await instance.begun(await instance.submit(resources={"gpus": 1}))
    assert instance.manager.waiting() == {"llm": 0, "script": 0}
    # The request waits for a model, whose server is a job that waits for GPUs.
    request = asyncio.create_task(
        instance.manager.residents.request_queues.acquire("big", soon())
    )
    await instance.submit(resources={"gpus": 1})
    await eventually(lambda: instance.loaded == [("big", "booting")], "the model")
    assert instance.manager.waiting() == {"llm": 1, "script": 1}
    request.cancel()


async def test_a_script_boots_until_it_shows_progress(instance: Managed):
    (job_id,) = await instance.controller.requests.submit([{"script": "count"}])

    def work() -> dict[str, Any]:
        found = instance.manager.gpu_work.all().values()
        (busy,) = [each for each in found if each["state"] != "idle"]
        return busy

    await instance.begun(job_id)
    await instance.until(job_id, "running")
    assert work()["state"] == "booting_script"
    assert work()["script"] == "count"
    assert work()["expected_at"] - work()["since"] == 5.0
    await instance.progress(job_id, 0)
    assert work()["state"] == "script_busy"
    await instance.restart()
    assert work()["state"] == "script_busy"
    await instance.finish(job_id)
    assert not instance.manager.batches.waiting()


async def test_a_gpu_cools_after_a_script(instance: Managed):
    # This policy never asks to be asked again.
    await instance.restart_with(
        resource_manager={"cooling_s": 0.5}, residency={"policy": "lru"}
    )
    job_id = await instance.submit(resources={"gpus": 2})
    await instance.finish(job_id)
    states = {each["state"] for each in instance.manager.gpu_work.all().values()}
    assert states == {"cooling"}
    # Nothing but time lets the model load afterwards.
    await instance.manager.residents.request_queues.acquire("chat", soon())


async def test_a_model_goes_to_a_gpu_that_does_not_cool(instance: Managed):
    await instance.restart_with(resource_manager={"cooling_s": 60})
    job_id = await instance.submit(resources={"gpus": 1})
    await instance.finish(job_id)
    (attempt,) = instance.attempts(job_id)
    (cooling,) = attempt["placements"][0]["gpu_uuids"]
    await instance.manager.residents.request_queues.acquire("chat", soon())
    (resident,) = instance.manager.residents.servers.live.values()
    assert resident.gpu != cooling


async def test_the_brains_model_and_scripts_keep_apart(instance: Managed):
    roles = {"1": "brain_primary"}
    models = {"chat": MODEL, "brain": {**MODEL, "brain": True}}
    await instance.restart_with(models=models, resource_manager={"gpu_roles": roles})
    await instance.manager.models.load("brain")
    (resident,) = instance.manager.residents.servers.live.values()
    assert resident.gpu == "GPU-node_1-1"
    await eventually(lambda: instance.loaded == [("brain", "ready")], "the model")
    await instance.manager.models.unload("brain")
    await eventually(lambda: not instance.loaded, "the model to be gone")
    await instance.manager.models.load("chat")
    (resident,) = instance.manager.residents.servers.live.values()
    assert resident.gpu == "GPU-node_1-0"


async def test_a_guest_on_the_brains_gpu_makes_room_and_the_brain_does_not(
    instance: Managed,
):
    roles = {"0": "brain_primary", "1": "brain_secondary"}
    models = {"chat": MODEL, "brain": {**MODEL, "brain": True}}
    await instance.restart_with(
        models=models,
        resource_manager={"gpu_roles": roles},
        residency={"policy": "lru"},
    )
    await instance.manager.models.load("chat")
    await eventually(lambda: instance.loaded == [("chat", "ready")], "the guest")
    await instance.manager.models.load("brain")
    await eventually(lambda: len(instance.loaded) == 2, "the brain's model")
    servers = instance.manager.residents.servers.live.values()
    gpu_of = {resident.model: resident.gpu for resident in servers}
    fleet = instance.manager.residents.fleet(time.monotonic())
    assert fleet.pinned_gpus == {gpu_of["brain"]}
    script = await instance.submit(resources={"gpus": 1})
    await instance.until(script, "running")
    (attempt,) = instance.attempts(script)
    assert attempt["placements"][0]["gpu_uuids"] == [gpu_of["chat"]]


async def test_a_busy_model_makes_room_for_a_script_if_the_settings_say_so(
    instance: Managed,
):
    eviction = {"prefer_idle_llm_eviction": False}
    await instance.restart_with(
        resource_manager={"eviction_policy": eviction}, residency={"policy": "lru"}
    )
    queues = instance.manager.residents.request_queues
    replica = await queues.acquire("chat", soon())
    await instance.begun(await instance.submit(resources={"gpus": 1}))
    script = await instance.submit(resources={"gpus": 1})
    await eventually(lambda: replica.draining, "the model to get no more requests")
    queues.release(replica, 0.1)
    await instance.until(script, "running")


async def test_a_task_waits_for_the_gpu_that_it_names_to_report(tmp_path):
    made = Managed(tmp_path, gpu_count=2)
    host = made.hosts.pop("node_1")
    await made.start()
    task = {"task_id": "t", "task_class": "script", "task_type": "process"}
    submitting = asyncio.create_task(
        made.controller.requests.submit(
            [{**task, "script": "count", "gpu_requirement": "1"}]
        )
    )
    await asyncio.sleep(0)
    made.hosts["node_1"] = host
    await made.provider.join("node_1")
    (job_id,) = await submitting
    spec = made.ledger.queries.specs([job_id])[job_id]
    assert spec["resources"]["gpus"]["uuid"] == ["GPU-node_1-1"]
    await made.stop()


async def test_a_task_without_a_model_gets_the_loaded_one(instance: Managed):
    models = {"a": {**MODEL, "boot_s": 1}, "b": {**MODEL, "boot_s": 100}}
    await instance.restart_with(models=models)

    async def chosen() -> str:
        task = {"task_id": "t", "task_class": "llm", "task_type": "parse"}
        body = msgspec.Raw(json.dumps({**task, "prompt": "x"}).encode())
        return (await instance.controller.requests.check(body)).spec()["model"]

    assert await chosen() == "a"
    await instance.manager.models.load("b")
    await eventually(lambda: instance.loaded == [("b", "ready")], "the model")
    assert await chosen() == "b"


async def test_a_model_that_never_answers_is_refused_in_the_end(
    instance: Managed, monkeypatch
):
    monkeypatch.setattr(resident, "_FIRST_PAUSE_S", 0.01)

    async def fail() -> None:
        while True:
            for attempt_id, attempt in list(instance.host.attempts.items()):
                if attempt.live:
                    instance.host.ended(attempt_id, exit_code=7)
            instance.provider.deliver_soon("node_1")
            await asyncio.sleep(0.01)

    failing = asyncio.create_task(fail())
    with pytest.raises(Exception, match="chat cannot be loaded: its server ended"):
        await instance.manager.residents.request_queues.acquire("chat", soon())
    failing.cancel()


async def test_an_exclusive_batch_lets_models_sleep_and_wakes_them(
    instance: Managed, tmp_path
):
    await instance.manager.models.load("chat")
    await eventually(lambda: instance.loaded == [("chat", "ready")], "the model")
    batch_id = await submit(
        instance, batch(tmp_path / "results", 7, BatchMode.EXCLUSIVE)
    )
    await eventually(lambda: len(instance.workers(batch_id)) == 2, "two workers")
    assert instance.loaded == [("chat", "asleep")]
    with pytest.raises(RefusedError):
        await instance.manager.models.load("big")
    await work(instance, batch_id)
    shown = await eventually(lambda: over(instance, batch_id), "the batch to end")
    assert shown["completed"] == 7 and instance.loaded == [("chat", "ready")]
    index = json.loads((Path(shown["results"]) / "index.json").read_text())
    assert [item["state"] for item in index["items"]] == ["completed"] * 7


async def test_a_batch_goes_on_after_a_restart(instance: Managed, tmp_path):
    await instance.manager.models.load("big")
    await eventually(lambda: instance.loaded == [("big", "ready")], "the model")
    batch_id = await submit(
        instance, batch(tmp_path / "results", 5, BatchMode.EXCLUSIVE)
    )
    await eventually(lambda: len(instance.workers(batch_id)) == 2, "two workers")
    await instance.restart()
    await work(instance, batch_id)
    shown = await eventually(lambda: over(instance, batch_id), "the batch to end")
    assert shown["completed"] == 5 and instance.loaded == [("big", "ready")]


async def test_a_batch_loads_a_model_again_whose_server_fails_meanwhile(
    instance: Managed, tmp_path
):
    """After a pause, though nothing else happens."""
    await instance.manager.models.load("big")
    await eventually(lambda: instance.loaded == [("big", "ready")], "the model")
    batch_id = await submit(instance, batch(tmp_path / "r", 2, BatchMode.EXCLUSIVE))
    await eventually(lambda: len(instance.workers(batch_id)) == 2, "two workers")
    instance.deaf_servers = True
    await work(instance, batch_id)
    await eventually(lambda: instance.loaded == [("big", "booting")], "it to boot")
    (server,) = instance.manager.residents.servers.live
    await instance.finish(server, exit_code=1)
    instance.deaf_servers = False
    await eventually(lambda: over(instance, batch_id), "the batch to end")
    assert instance.loaded == [("big", "ready")]


async def test_a_busy_model_stays_if_the_batch_ends_before_it_has_left(
    instance: Managed, tmp_path
):
    await instance.manager.models.load("chat")
    await eventually(lambda: instance.loaded == [("chat", "ready")], "the model")
    queues = instance.manager.residents.request_queues
    replica = await queues.acquire("chat", soon())
    batch_id = await submit(instance, batch(tmp_path / "r", 3, BatchMode.EXCLUSIVE))
    await eventually(lambda: instance.workers(batch_id), "a worker beside it")
    assert replica.draining
    await instance.manager.batches.cancel(batch_id)
    await eventually(lambda: over(instance, batch_id), "the batch to end")
    queues.release(replica, 0.1)
    assert await queues.acquire("chat", soon()) is replica
    queues.release(replica, 0.1)
    assert instance.loaded == [("chat", "ready")]


async def test_a_shared_batch_shares_its_items(instance: Managed, tmp_path):
    spec = batch(tmp_path / "results", 3, BatchMode.SHARED)
    assert instance.manager.batches.estimates.estimate(spec)["items"] == 3
    batch_id = await submit(instance, spec)
    assert instance.manager.batches.waiting() == 3
    await work(instance, batch_id)
    shown = await eventually(lambda: over(instance, batch_id), "the batch to end")
    assert (shown["completed"], shown["state"]) == (3, "completed")


async def test_workers_that_fail_end_the_batch_and_its_items_can_be_retried(
    instance: Managed, tmp_path, monkeypatch
):
    monkeypatch.setattr("gpuyard.resource_manager.batch.time.monotonic", lambda: 0.0)
    monkeypatch.setattr("gpuyard.resource_manager.batches._MAX_FAILED_WORKERS", 1)
    batch_id = await submit(instance, batch(tmp_path / "r", 2, BatchMode.SHARED))
    workers = await eventually(lambda: instance.workers(batch_id), "a worker")
    for job_id in list(workers.values()):
        await instance.finish(job_id, exit_code=3)
    shown = await eventually(lambda: over(instance, batch_id), "the batch to end")
    assert shown["failed"] == 2 and "end before" in shown["items"][0]["reason"]
    await instance.manager.batches.retry(batch_id, None)
    await work(instance, batch_id)
    shown = await eventually(lambda: over(instance, batch_id), "the batch to end")
    assert shown["completed"] == 2


async def test_a_cancelled_batch_ends_its_workers(instance: Managed, tmp_path):
    batch_id = await submit(instance, batch(tmp_path / "r", 4, BatchMode.SHARED))
    await eventually(lambda: len(instance.workers(batch_id)) == 2, "two workers")
    await instance.manager.batches.cancel(batch_id)
    shown = await eventually(lambda: over(instance, batch_id), "the batch to end")
    assert shown["state"] == "cancelled" and not instance.workers(batch_id)


async def test_a_job_of_two_gpus_gets_them_though_other_nodes_have_free_ones(tmp_path):
    """The GPUs of two nodes are no place for it."""
    made = Managed(tmp_path, gpu_count=2)
    made.hosts["node_2"] = FakeHost("node_2", gpu_count=1)
    await made.start()
    await made.restart_with(residency={"policy": "lru"})
    servers = asyncio.create_task(made.run_servers())
    await made.manager.models.load("chat")
    await eventually(lambda: made.loaded == [("chat", "ready")], "the model")
    (resident,) = made.manager.residents.servers.live.values()
    assert "node_1" in resident.gpu
    job_id = await made.submit(resources={"gpus": 2})
    await made.until(job_id, "running")
    servers.cancel()
    await made.stop()


async def test_a_job_that_can_never_have_its_gpus_keeps_none_from_models(
    instance: Managed,
):
    models = {"chat": {**MODEL, "pinned": True}, "other": MODEL}
    await instance.restart_with(models=models)
    await eventually(lambda: instance.loaded == [("chat", "ready")], "the pinned model")
    await instance.submit(resources={"gpus": 2})
    await instance.manager.residents.request_queues.acquire("other", soon())


async def test_a_job_of_several_gpus_gets_them_behind_one_that_waits_for_another(
    tmp_path: Path,
):
    """Models are wanted all the time, and would take each GPU that is freed for it."""
    made = Managed(tmp_path, gpu_count=3)
    await made.start()
    servers = asyncio.create_task(made.run_servers())
    model = {"command": ["serve", "{port}"], "memory_gb": 15, "boot_s": 0.1}
    models = {"a": model, "b": model}
    await made.restart_with(models=models, residency={"policy": "lru"})
    third = {"gpus": {"count": 1, "uuid": ["GPU-node_1-2"]}}
    await made.begun(await made.submit(resources=third))
    queues = made.manager.residents.request_queues
    busy = [await queues.acquire(model, soon()) for model in "ab"]
    first = await made.submit(resources=third)
    wide = await made.submit(resources={"gpus": 2})
    queues.release(busy[0], 0.1)
    again = asyncio.create_task(queues.acquire("a", QueuedRequestTerms()))
    await eventually(lambda: made.loaded == [("b", "ready")], "a to make room")
    queues.release(busy[1], 0.1)
    await made.begun(wide)
    assert made.job(first)["state"] == "queued"
    assert not again.done()
    again.cancel()
    servers.cancel()
    await made.stop()


async def test_a_job_that_has_its_gpus_and_lacks_cores_keeps_none_from_models(
    tmp_path: Path,
):
    made = Managed(tmp_path, gpu_count=2)
    await made.start()
    servers = asyncio.create_task(made.run_servers())
    model = {"command": ["serve", "{port}"], "memory_gb": 12, "boot_s": 0.1}
    await made.restart_with(models={"a": model}, residency={"policy": "lru"})
    cores = await made.begun(await made.submit(resources={"cpus": 3}))
    one = await made.begun(await made.submit(resources={"gpus": 1, "cpus": 0.5}))
    wide = await made.submit(resources={"gpus": 2, "cpus": 2})
    queues = made.manager.residents.request_queues
    asking = asyncio.create_task(queues.acquire("a", soon()))
    for _ in range(100):  # it reserves the free GPU meanwhile
        await asyncio.sleep(0)
    made.host.ended(one)
    await made.provider.deliver("node_1")
    queues.release(await asking, 0.1)
    assert made.job(wide)["state"] == "queued"
    made.host.ended(cores)
    await made.provider.deliver("node_1")
    await made.begun(wide)
    servers.cancel()
    await made.stop()


@pytest.fixture
async def two_gpus(tmp_path: Path) -> AsyncIterator[Managed]:
    """With a model that fills a GPU, and loads and leaves at once."""
    made = Managed(tmp_path, gpu_count=2)
    await made.start()
    servers = asyncio.create_task(made.run_servers())
    serve = ["serve", "{port}"]
    quick = {"command": serve, "memory_gb": 15, "boot_s": 0.1, "unload_s": 10}
    await made.restart_with(models={"a": quick})
    yield made
    servers.cancel()
    await made.stop()


async def test_a_job_lends_models_what_it_reserves_behind_a_long_script(
    two_gpus: Managed,
):
    long = await two_gpus.submit(resources={"gpus": 1}, estimated_duration_s=3600)
    attempt = await two_gpus.begun(long)
    # Its priority is that of models, and it comes before them.
    wide = await two_gpus.submit(resources={"gpus": 2}, priority=5)
    queues = two_gpus.manager.residents.request_queues
    replica = await queues.acquire("a", soon())
    assert two_gpus.manager.models.listing()[0]["reserving_job_id"] is None
    again = asyncio.create_task(queues.acquire("a", QueuedRequestTerms()))
    two_gpus.host.ended(attempt)
    await two_gpus.provider.deliver("node_1")
    await eventually(lambda: replica.draining, "the model to be called back")
    queues.release(replica, 0.1)
    await two_gpus.begun(wide)
    assert not again.done()
    again.cancel()


async def test_a_job_lends_nothing_to_a_model_that_would_never_leave(
    two_gpus: Managed,
):
    long = await two_gpus.submit(resources={"gpus": 1}, estimated_duration_s=3600)
    attempt = await two_gpus.begun(long)
    wide = await two_gpus.submit(resources={"gpus": 2}, name="wide")
    await two_gpus.manager.models.pin("a", pinned=True)
    queues = two_gpus.manager.residents.request_queues
    asking = asyncio.create_task(queues.acquire("a", QueuedRequestTerms()))
    (model,) = two_gpus.manager.models.listing()
    assert (model["state"], model["reserving_job_id"]) == ("absent", wide)
    await eventually(lambda: queues.by_model["a"].waiting, "the request")
    assert f"GPU 1 is kept for job wide ({wide})" in two_gpus.manager.models.why_busy(
        "a"
    )
    two_gpus.host.ended(attempt)
    await two_gpus.provider.deliver("node_1")
    await two_gpus.begun(wide)
    asking.cancel()


async def test_to_ask_what_if_a_script_had_ended_changes_nothing(two_gpus: Managed):
    await two_gpus.begun(
        await two_gpus.submit(resources={"gpus": 1}, estimated_duration_s=3600)
    )
    await two_gpus.submit(resources={"gpus": 2})
    residents = two_gpus.manager.residents
    queues = residents.request_queues
    replica = await queues.acquire("a", soon())
    asking = asyncio.create_task(queues.acquire("a", QueuedRequestTerms()))
    await eventually(lambda: queues.by_model["a"].waiting, "the next request")
    assert residents.reserving("a") == ("", ()), "its GPU is lent"
    residents.would_load_on("GPU-node_1-0")
    assert residents.reserving("a") == ("", ())
    asking.cancel()
    queues.release(replica, 0.1)


async def test_a_job_behind_a_model_names_it_and_when_it_may_leave(two_gpus: Managed):
    queues = two_gpus.manager.residents.request_queues
    replica = await queues.acquire("a", soon())
    job_id = await two_gpus.submit(resources={"gpus": 2})
    requests = two_gpus.controller.requests

    def first_remedy() -> str:
        reason = requests.why(job_id)
        assert reason
        return reason.would_help[0]

    (model,) = two_gpus.manager.residents.servers.live
    busy = "it answers requests; the policy cost unloads it when that is worth it"
    assert first_remedy().startswith(f"wait for {model} ({busy}, after ")
    assert first_remedy().endswith("s of waiting at the latest if no script runs)")
    await two_gpus.manager.models.pin("a", pinned=True)
    assert "pinned: it stays until `gpuyard models unpin a`" in first_remedy()
    await two_gpus.cancel(job_id)
    queues.release(replica, 0.1)


async def test_a_model_names_the_job_that_reserves_a_gpu(two_gpus: Managed):
    await two_gpus.begun(await two_gpus.submit(resources={"gpus": 1}))
    wide = await two_gpus.submit(resources={"gpus": 2}, name="wide")
    queues = two_gpus.manager.residents.request_queues
    asking = asyncio.create_task(queues.acquire("a", soon()))
    models = two_gpus.manager.models
    await eventually(lambda: models.listing()[0]["reserving_job_id"] == wide)
    kept = models.listing()[0]["why_waiting"]
    assert kept == f"GPU 1 is kept for job wide ({wide}), which needs more"
    await two_gpus.cancel(wide)
    queues.release(await asking, 0.1)


async def test_a_model_on_several_gpus_loads_beside_one_that_sleeps(instance: Managed):
    await instance.manager.models.load("chat")
    await eventually(lambda: instance.loaded == [("chat", "ready")], "the model")
    (chat,) = instance.manager.residents.servers.live.values()
    chat.leave()
    instance.core.schedule()
    await eventually(lambda: instance.loaded == [("chat", "asleep")], "it to sleep")
    await instance.manager.models.load("big")
    loaded = [("big", "ready"), ("chat", "asleep")]
    await eventually(lambda: instance.loaded == loaded, "both models")


async def test_a_server_that_fails_again_and_again_refuses_nothing_while_another_answers(
    instance: Managed,
):
    await instance.manager.models.load("chat")
    await eventually(lambda: instance.loaded == [("chat", "ready")], "the model")
    failure = instance.manager.residents.servers.failures["chat"]
    failure.count = 3
    failure.reason = "its second server ended"
    failure.until = time.monotonic() + 60
    assert instance.manager.models.why_not("chat") is None
    await instance.manager.models.unload("chat")
    await eventually(lambda: not instance.loaded, "it to be gone")
    assert "cannot be loaded" in (instance.manager.models.why_not("chat") or "")


@pytest.fixture
async def one_gpu(tmp_path: Path) -> AsyncIterator[Managed]:
    made = Managed(tmp_path, gpu_count=1)
    await made.start()
    servers = asyncio.create_task(made.run_servers())
    yield made
    servers.cancel()
    await made.stop()


async def test_two_models_that_are_requested_at_once_share_a_gpu(one_gpu: Managed):
    """Neither waits for the GPU that the other has booked."""
    small = {"command": ["serve", "{port}"], "memory_gb": 6}
    await one_gpu.restart_with(models={"a": small, "b": small})
    queues = one_gpu.manager.residents.request_queues
    await asyncio.gather(*(queues.acquire(model, soon()) for model in "ab"))
    assert one_gpu.loaded == [("a", "ready"), ("b", "ready")]


async def test_models_that_would_fill_a_gpu_together_take_turns_unless_that_is_set(
    one_gpu: Managed,
):
    models = {
        name: {"command": ["serve", "{port}"], "memory_gb": 7, "boot_s": 0.1}
        for name in "ab"
    }
    await one_gpu.restart_with(models=models)
    listing = one_gpu.manager.models.listing
    await one_gpu.manager.models.load("a")
    with pytest.raises(RefusedError, match="b and a would take 88% of the memory"):
        await one_gpu.manager.models.load("b")
    await one_gpu.manager.models.pin("a", pinned=True)
    await one_gpu.manager.models.pin("b", pinned=True)
    (b,) = [model for model in listing() if model["name"] == "b"]
    assert "[gpus] models_percent" in b["problem"]
    # What runs is left as it is, and a model that is alone may be larger.
    await one_gpu.restart_with(models=models, gpus={"models_percent": 100})
    both = [("a", "ready"), ("b", "ready")]
    await eventually(lambda: one_gpu.loaded == both, "both models")
    await one_gpu.restart_with(models=models, gpus={"models_percent": 40})
    await eventually(lambda: one_gpu.loaded == both, "both models again")
    for model in "ab":
        await one_gpu.manager.models.unload(model)
    await eventually(lambda: one_gpu.loaded == [], "both to leave")
    await one_gpu.manager.models.load("a")


async def test_workers_that_leave_for_a_model_get_their_batch_ahead(
    one_gpu: Managed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """However often a policy wants their GPU."""
    residents = one_gpu.manager.residents
    monkeypatch.setattr(residents, "would_load_on", lambda _: True)
    batch_id = await submit(one_gpu, batch(tmp_path / "r", 3, BatchMode.SHARED))
    await work(one_gpu, batch_id)
    shown = await eventually(lambda: over(one_gpu, batch_id), "the batch to end")
    assert shown["completed"] == 3


async def test_a_model_makes_room_for_a_job_that_is_tried_again(one_gpu: Managed):
    """Nothing but the end of its pause lets it wait for the GPU."""
    await one_gpu.restart_with(residency={"policy": "lru"})
    one_gpu.core.policy = replace(one_gpu.core.policy, retry_base_s=1, retry_max_s=1)
    job_id = await one_gpu.submit(resources={"gpus": 1}, retry_count=1)
    await one_gpu.until(job_id, "running")
    await one_gpu.finish(job_id, exit_code=1)
    queues = one_gpu.manager.residents.request_queues
    queues.release(await queues.acquire("chat", soon()), 0.1)
    assert one_gpu.job(job_id)["state"] == "queued"
    await one_gpu.until(job_id, "running")


async def test_a_batch_ends_though_a_job_wants_the_gpus_of_its_models(
    instance: Managed, tmp_path: Path
):
    """The models are loaded again once; then they make room, as for any job."""
    model = {"command": ["serve", "{port}"], "memory_gb": 12, "boot_s": 1}
    await instance.restart_with(
        models={"a": model, "b": model}, residency={"policy": "lru"}
    )
    for name in "ab":
        await instance.manager.models.load(name)
    await eventually(lambda: len(instance.loaded) == 2, "both models")
    spec = batch(tmp_path / "r", 4, BatchMode.EXCLUSIVE)
    batch_id = await submit(instance, spec)
    await eventually(lambda: len(instance.workers(batch_id)) == 2, "two workers")
    job_id = await instance.submit(resources={"gpus": 2})
    await work(instance, batch_id)
    await eventually(lambda: over(instance, batch_id), "the batch to end")
    await instance.until(job_id, "running")


async def test_a_clock_that_is_set_back_lets_no_job_wait_anew(one_gpu: Managed):
    for _ in range(2):
        await one_gpu.submit(resources={"gpus": 1})
    residents = one_gpu.manager.residents
    (before,) = residents.fleet(time.monotonic()).scripts
    one_gpu.core.clock = lambda: time.time() - 3600
    (after,) = residents.fleet(time.monotonic()).scripts
    assert after.arrived_at == before.arrived_at


async def test_a_server_that_starts_takes_no_model_that_waits_for_one_that_sleeps(
    one_gpu: Managed,
):
    """It would load another one into the same memory."""
    script = await one_gpu.submit(resources={"gpus": 1})
    await one_gpu.until(script, "running")
    one_gpu.manager.residents.servers.load("chat", ("GPU-node_1-0",))
    await one_gpu.core.committed()
    await one_gpu.restart()
    assert one_gpu.loaded == [("chat", "booting")]
