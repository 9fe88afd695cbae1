"""Pools: nodes that come, work, go and break, and servers that are killed meanwhile."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuyard.controller import pool_calls, pool_output, pools
from gpuyard.domain import wire
from gpuyard.domain.errors import NotFoundError, ProviderError
from gpuyard.server.app_state import AppState
from gpuyard.server.routers.pools import list_pool_nodes, list_pools, show_pool
from tests.support.fake_pool import PRICE, Pooled
from tests.support.fake_provider import FakeHost
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio
ONE_GPU = {"resources": {"gpus": {"count": 1}}}
Make = Callable[..., Any]


@pytest.fixture
async def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Make]:
    """Makes an instance with a pool of these settings."""
    monkeypatch.setattr(pools, "LOOK_AGAIN_S", 0.01)
    monkeypatch.setattr(pool_calls, "REPEAT_S", 0.05)
    monkeypatch.setattr(pool_output, "PAUSE_S", 0.01)
    made: list[Pooled] = []

    async def start(**pool: Any) -> Pooled:
        instance = Pooled(tmp_path, pool)
        made.append(instance)
        await instance.start()
        return instance

    yield start
    for instance in made:
        await instance.settled()
        instance.check()
        await instance.stop()
        live = {machine.owner for machine in instance.cloud.live}
        assert live <= {row["id"] for row in instance.rows_after_the_end()}


async def test_nodes_come_for_what_waits_work_and_go(make: Make):
    instance = await make(max=2)
    jobs = [await instance.submit(**ONE_GPU) for _ in range(3)]
    await instance.boot(2)
    await instance.until_states("joined", "joined")
    (row, _) = instance.rows()
    assert row["name"].startswith("warm-")
    assert instance.core.view.node(row["node_id"]).joined
    await instance.end_all(jobs)
    instance.let_idle_go()
    await instance.until_states()
    for row in instance.rows():
        assert row["why"].startswith("nothing ran on it for ")
        assert row["began_at"] < row["joined_at"] < row["ended_at"]
        assert Decimal(row["price_per_hour"]) == PRICE
    with pytest.raises(NotFoundError):
        instance.controller.joined_nodes.find(row["node_id"])
    assert instance.cloud.launches == 2
    assert instance.controller.pools.idle


async def test_its_minimum_is_there_before_any_job_and_stays(make: Make):
    instance = await make(min=1, max=2)
    await instance.boot()
    await instance.until_states("joined")
    job = await instance.submit(**ONE_GPU)
    await instance.begun(job)
    await instance.finish(job)
    # The extra node of a second job goes again; the minimum does not.
    jobs = [await instance.submit(**ONE_GPU) for _ in range(2)]
    await instance.boot()
    await instance.end_all(jobs)
    instance.let_idle_go()
    await instance.until_states("joined")
    assert not instance.controller.pools.idle


async def test_a_node_that_cannot_be_had_is_asked_for_again_later_and_why_is_said(
    make: Make, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("gpuyard.scheduler.pools.AGAIN_S", 0.05)
    instance = await make(min=1)
    refused = ProviderError("us-east-1a has no g1 now", "fake", "CAPACITY")
    instance.cloud.refusal = refused
    await eventually(lambda: instance.states().count("gone") >= 2, "two failures")
    pool = instance.controller.pools.by_name["warm"]
    await eventually(
        lambda: pool.plan and "us-east-1a has no g1 now" in pool.plan.why, "the reason"
    )
    assert instance.rows()[0]["why"] == "us-east-1a has no g1 now"
    # Nobody joins in the place of a node that was refused.
    joined_nodes = instance.controller.joined_nodes
    gone = {row["name"] for row in instance.rows() if row["state"] == "gone"}
    invited = {one.name: one.state.value for one in joined_nodes.invitations()}
    assert {invited[name] for name in gone} == {"over"}
    instance.cloud.refusal = None
    await instance.boot()
    await instance.until_states("joined")


async def test_a_node_whose_machine_dies_is_replaced_and_its_job_goes_on(make: Make):
    instance = await make(max=1)
    job = await instance.submit(**ONE_GPU, retry_count=1)
    await instance.boot()
    await instance.begun(job)
    await instance.until_states("joined")
    (first,) = instance.rows()
    instance.cloud.put(first["id"], live=False, why="the host has failed")
    await eventually(lambda: instance.states()[0] == "gone", "its row to go")
    assert instance.rows()[0]["why"] == "the host has failed"
    await instance.boot()
    await instance.end_all([job])
    assert (await instance.until(job))["state"] == "completed"


async def test_a_silent_node_is_ended_and_replaced(make: Make):
    instance = await make(min=1, silence=0.1)
    (host,) = await instance.boot()
    await instance.until_states("joined")
    await instance.provider.leave(host.node_id)
    await eventually(lambda: instance.states()[0] == "gone", "its row to go")
    assert instance.rows()[0]["why"].startswith("it was silent for ")
    await instance.boot()
    await instance.until_states("joined")


async def test_a_node_whose_gpu_breaks_is_drained_and_replaced(make: Make):
    instance = await make(min=1, max=2)
    (host,) = await instance.boot()
    job = await instance.submit(**ONE_GPU)
    await instance.begun(job)
    (gpu,) = host.gpus
    broken = wire.GpuStatus(
        gpu.uuid,
        0,
        gpu.name,
        gpu.memory_mb,
        "7.5",
        state="quarantined",
        problem="XID 79",
    )
    host.say(wire.GpusSeen([broken]))
    await instance.provider.deliver(host.node_id)
    await instance.boot()
    # The job that it has runs to its end, whatever becomes of the server.
    await instance.until_states("draining", "joined")
    await instance.restart()
    assert instance.rows()[0]["why"] == "its GPU 0 is quarantined: XID 79"
    await instance.finish(job)
    await instance.until_states("joined")


async def test_a_machine_that_never_joins_is_given_up(make: Make):
    instance = await make(min=1, boot_timeout=0.05)
    await eventually(lambda: "gone" in instance.states(), "its row to go")
    assert instance.rows()[0]["why"].startswith("it has not joined ")


@pytest.mark.parametrize("moment", ["before", "reply"])
async def test_after_a_kill_in_the_middle_of_a_launch_there_is_one_machine(
    make: Make, moment: str
):
    instance = await make(min=1)
    if moment == "before":
        instance.cloud.hold = asyncio.Event()
    else:
        instance.cloud.lose_replies = True
    await eventually(lambda: instance.cloud.launches, "the first launch")
    assert instance.states() == ["asked"]
    await instance.crash()
    instance.cloud.hold = None
    instance.cloud.lose_replies = False
    await instance.start()
    await instance.boot()
    await instance.until_states("joined")
    assert len(instance.cloud.known) == 1


async def test_a_machine_that_nobody_knows_is_ended(make: Make):
    instance = await make(min=1)
    await instance.boot()
    await instance.until_states("joined")
    (row,) = instance.rows()
    late = f"poolnode_{'0' * 32}"
    stray = replace(instance.cloud.known[row["id"]], owner=late, reference="i-late")
    instance.cloud.known[late] = stray
    await eventually(lambda: not instance.cloud.known[late].live, "it to be ended")
    assert instance.cloud.known[row["id"]].live


async def test_what_becomes_of_machines_is_seen_while_no_others_are_to_be_had(
    make: Make, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pool_calls, "_SIZE_AGAIN_S", 0.0)
    instance = await make(max=1)
    job = await instance.submit(**ONE_GPU, retry_count=1)
    await instance.boot()
    await instance.begun(job)
    (row,) = instance.rows()
    instance.cloud.no_size = ProviderError("max_price: g1 costs more", "fake", "PRICE")
    pool = instance.controller.pools.by_name["warm"]
    await eventually(lambda: pool.problem.startswith("max_price"), "the problem")
    instance.cloud.put(row["id"], live=False, why="the host has failed")
    await eventually(lambda: instance.states()[0] == "gone", "its row to go")
    instance.cloud.no_size = None
    await instance.cancel(job)


async def test_a_node_has_not_gone_because_its_provider_does_not_answer(make: Make):
    instance = await make(max=1)
    job = await instance.submit(**ONE_GPU)
    await instance.boot()
    await instance.end_all([job])
    may_end = instance.cloud.hold = asyncio.Event()
    instance.let_idle_go()
    await instance.until_states("ending")
    # Its agent comes back no more, and the next server has no older answer, either.
    instance.hosts = {"node_1": instance.host}
    instance.cloud.no_answer = ProviderError("no route to the cloud", "fake", "TIMEOUT")
    await instance.restart()
    may_end.set()
    await eventually(lambda: not instance.cloud.live, "its machine to be ended")
    pool = instance.controller.pools.by_name["warm"]
    asked_at = time.monotonic()
    await eventually(lambda: pool.asked_at > asked_at + 0.1, "some more questions")
    assert instance.states() == ["ending"]
    instance.cloud.no_answer = None
    await instance.until_states()


async def test_a_machine_that_comes_after_the_last_row_has_gone_is_ended(make: Make):
    instance = await make(max=1)
    job = await instance.submit(**ONE_GPU)
    await instance.boot()
    await instance.end_all([job])
    instance.let_idle_go()
    await instance.until_states()
    (row,) = instance.rows()
    late = f"poolnode_{'0' * 32}"
    gone = instance.cloud.known[row["id"]]
    instance.cloud.known[late] = replace(
        gone, owner=late, reference="i-late", live=True
    )
    await eventually(lambda: not instance.cloud.known[late].live, "it to be ended")


async def printed_and_ended(instance: Pooled) -> tuple[str, FakeHost, asyncio.Event]:
    """A job that has printed something and ended, and its node of the pool, which would
    go; what it has printed can be read once the event is set.
    """
    job = await instance.submit(**ONE_GPU)
    (host,) = await instance.boot()
    attempt_id = await instance.begun(job)
    host.attempts[attempt_id].log = b"trained\n"
    may_be_read = host.hold_log = asyncio.Event()
    await instance.finish(job)
    await instance.until(job)
    instance.let_idle_go()
    return job, host, may_be_read


async def printed(instance: Pooled, job: str) -> bytes:
    return b"".join([part.data async for part in instance.controller.logs.read(job)])


async def test_a_node_waits_until_what_its_jobs_have_printed_is_here(make: Make):
    instance = await make(max=1)
    job, host, may_be_read = await printed_and_ended(instance)
    await instance.until_states("draining")
    pool = instance.controller.pools.by_name["warm"]
    await eventually(lambda: pool.plan and pool.plan.end, "the plan to end it")
    assert instance.states() == ["draining"]
    may_be_read.set()
    await instance.until_states()
    del instance.hosts[host.node_id]
    assert await printed(instance, job) == b"trained\n"


async def test_the_next_server_brings_home_what_jobs_have_printed(make: Make):
    instance = await make(max=1)
    job, host, _ = await printed_and_ended(instance)
    await instance.until_states("draining")
    await instance.crash()
    host.hold_log = None
    await instance.start()
    await instance.until_states()
    del instance.hosts[host.node_id]
    assert await printed(instance, job) == b"trained\n"


async def test_what_is_older_than_any_log_is_not_brought_home(
    make: Make, monkeypatch: pytest.MonkeyPatch
):
    instance = await make(max=1)
    job, host, _ = await printed_and_ended(instance)
    await instance.until_states("draining")
    await instance.crash()
    host.hold_log = None
    retention = instance.settings.retention.model_copy(update={"logs_days": 1e-9})
    instance.settings = instance.settings.model_copy(update={"retention": retention})
    await instance.start()
    await instance.until_states()
    assert not copy_of(instance, job).exists()


def copy_of(instance: Pooled, job: str) -> Path:
    (attempt,) = instance.attempts(job)
    return instance.controller.logs._copy_path(attempt["id"])


async def test_a_node_cannot_fill_the_disk_with_what_jobs_print(
    make: Make, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pool_output, "SPARE_BYTES", 0)
    instance = await make(max=1)
    job = await instance.submit(**ONE_GPU, log_limit_gb=1 / 1024)
    (host,) = await instance.boot()
    host.attempts[await instance.begun(job)].log = b"x" * (3 << 20)
    await instance.finish(job)
    await instance.until(job)
    instance.let_idle_go()
    await instance.until_states()
    copy = copy_of(instance, job)
    assert not list(copy.parent.glob(f"{copy.stem}*"))


async def test_output_that_is_none_holds_up_no_other(make: Make):
    instance = await make(max=1)
    job = await instance.submit(**ONE_GPU)
    (host,) = await instance.boot()
    attempt_id = await instance.begun(job)
    host.attempts[attempt_id].log = cast("bytes", "no bytes")
    await instance.finish(job)
    await instance.until(job)
    other = await instance.submit(**ONE_GPU)
    host.attempts[await instance.begun(other)].log = b"trained\n"
    await instance.finish(other)
    await eventually(lambda: copy_of(instance, other).exists(), "the output")
    assert not copy_of(instance, job).exists()
    await eventually(lambda: attempt_id in host.logs, "its end to be recorded")
    host.logs[attempt_id] = b"at last\n"
    await eventually(lambda: copy_of(instance, job).exists(), "the other output")


async def test_a_node_does_not_wait_for_ever(
    make: Make, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pool_output, "LONGEST_WAIT_S", 0.0)
    instance = await make(max=1)
    _, _, may_be_read = await printed_and_ended(instance)
    await instance.until_states()
    may_be_read.set()


@pytest.mark.parametrize("listens", [True, False])
async def test_the_nodes_of_a_pool_that_is_no_longer_in_the_settings_end(
    make: Make, listens: bool
):
    instance = await make(min=1)
    await instance.boot()
    await instance.until_states("joined")
    await instance.crash()
    given: dict[str, Any] = {"pools": {}}
    if not listens:
        server = instance.settings.server
        given["server"] = server.model_copy(update={"agents_listen": None})
    instance.settings = instance.settings.model_copy(update=given)
    await instance.start()
    await instance.until_states()
    assert instance.rows()[0]["why"] == "the pool may have 0 nodes"


class OfOneThread(dict[str, Any]):
    """Only the thread that has made it may go through it, because that changes it."""

    def __init__(self, rows: dict[str, Any]) -> None:
        super().__init__(rows)
        self._thread = threading.get_ident()

    def values(self) -> Any:
        assert threading.get_ident() == self._thread
        return super().values()


async def test_pools_are_listed_from_memory_and_their_history_is_paged(make: Make):
    instance = await make(max=2)
    jobs = [await instance.submit(**ONE_GPU) for _ in range(2)]
    await instance.boot(2)
    await instance.end_all(jobs)
    instance.let_idle_go()
    await instance.until_states()
    # Their machines are no more, so no agent of theirs comes back.
    instance.hosts = {"node_1": instance.host}
    prices = {"USD": sum(map(cost_of, instance.rows()))}
    assert prices["USD"] > 0
    for _ in range(2):
        book = instance.controller.pools.book
        book.rows = OfOneThread(book.rows)
        # It has no way to ask the ledger.
        memory = cast("AppState", SimpleNamespace(controller=instance.controller))
        (pool,) = (await list_pools(memory))["items"]
        counted = {name: Decimal(amount) for name, amount in pool["cost"].items()}
        assert counted == pytest.approx(prices, abs=Decimal("0.00001"))
        await instance.restart()
    app_state = cast(
        "AppState",
        SimpleNamespace(
            controller=instance.controller, queries=instance.ledger.queries
        ),
    )
    newest = [row["id"] for row in instance.rows()[::-1]]
    shown = await show_pool(app_state, "warm")
    assert [node["id"] for node in shown["newest_nodes"]] == newest
    first = await list_pool_nodes(app_state, "warm", limit=1)
    second = await list_pool_nodes(app_state, "warm", limit=1, cursor=first["next"])
    assert [node["id"] for node in first["items"] + second["items"]] == newest
    rest = await list_pool_nodes(app_state, "warm", limit=1, cursor=second["next"])
    assert rest == {"items": [], "next": None}
    with pytest.raises(NotFoundError, match="no pool 'cold'"):
        await list_pool_nodes(app_state, "cold")


def cost_of(row: dict[str, Any]) -> Decimal:
    seconds = Decimal(row["ended_at"] - row["began_at"])
    return Decimal(row["price_per_hour"]) * seconds / 3600
