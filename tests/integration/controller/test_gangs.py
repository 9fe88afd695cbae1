"""Attempts on several nodes with agents."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.controlled import Controlled
from tests.support.fake_provider import FakeHost
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture
async def gang(instance: Controlled) -> str:
    """A job that runs on two nodes, each of which has room for one such share."""
    instance.hosts["node_2"] = FakeHost("node_2")
    await instance.provider.join("node_2")
    job_id = await instance.submit(resources={"nodes": 2, "cpus": 3}, retry_count=1)
    await instance.until(job_id, "running")
    return job_id


def shares(instance: Controlled, job_id: str) -> list[tuple[FakeHost, str]]:
    """The host of each share of the newest attempt, and the share's id there."""
    attempt = instance.attempts(job_id)[-1]
    hosts = [instance.hosts[place["node_id"]] for place in attempt["placements"]]
    ids = [attempt["id"], f"{attempt['id']}.1"]
    return list(zip(hosts, ids, strict=True))


async def end(instance: Controlled, share: tuple[FakeHost, str], **how: Any) -> None:
    host, name = share
    host.ended(name, **how)
    await instance.provider.deliver(host.node_id)
    await instance.settled()


async def test_each_node_runs_its_share_and_the_job_ends_with_the_last(
    instance: Controlled, gang: str
):
    first, second = shares(instance, gang)
    assert [list(host.attempts) for host, _ in (first, second)] == [
        [first[1]],
        [second[1]],
    ]
    await end(instance, first, exit_code=0)
    assert instance.job(gang)["state"] == "running"
    await end(instance, second, exit_code=0)
    assert (await instance.until(gang))["state"] == "completed"
    assert not first[0].attempts
    assert not second[0].attempts


async def test_a_share_that_fails_ends_the_others_and_is_named(
    instance: Controlled, gang: str
):
    first, second = shares(instance, gang)
    await end(instance, second, exit_code=3)
    await eventually(lambda: len(instance.attempts(gang)) == 2, "a second attempt")
    failed = instance.attempts(gang)[0]
    assert (failed["reason"], failed["exit_code"]) == ("exit_code", 3)
    assert failed["message"] == "share 1 of 2 ended first"
    assert (first[1], "share_failed") in first[0].stops


async def test_a_server_that_starts_knows_which_shares_have_ended(
    instance: Controlled, gang: str
):
    first, second = shares(instance, gang)
    await end(instance, second, exit_code=0)
    await instance.restart()
    assert instance.job(gang)["state"] == "running"
    await instance.settled()
    assert second[0].runs[second[1]] == 1
    await end(instance, first, exit_code=0)
    assert (await instance.until(gang))["state"] == "completed"


async def test_a_node_that_reboots_takes_the_shares_on_others_with_it(
    instance: Controlled, gang: str
):
    first, second = shares(instance, gang)
    first[0].obedient = False
    second[0].reboot()
    await instance.provider.leave(second[0].node_id)
    await instance.provider.join(second[0].node_id)
    await eventually(lambda: first[0].stops, "the other share to be stopped")
    await instance.settled()
    assert len(instance.attempts(gang)) == 1, "its other node is not free yet"
    first[0].obedient = True
    await end(instance, first, signal=15, stopped="share_failed")
    await eventually(lambda: len(instance.attempts(gang)) == 2, "a second attempt")
    lost = instance.attempts(gang)[0]
    assert (lost["state"], lost["reason"]) == ("lost", "attempt_lost")


async def test_a_cancel_reaches_all_shares(instance: Controlled, gang: str):
    await instance.cancel(gang)
    assert (await instance.until(gang))["state"] == "cancelled"
    for host, name in shares(instance, gang):
        assert (name, "cancelled") in host.stops


async def test_a_share_that_never_came_is_lost_if_the_others_run(
    instance: Controlled, monkeypatch: pytest.MonkeyPatch
):
    first = instance.hosts["node_1"]
    second = instance.hosts["node_2"] = FakeHost("node_2")
    await instance.provider.join("node_2")
    first.obedient = False
    second.deaf = True
    gang = await instance.submit(resources={"nodes": 2, "cpus": 3}, retry_count=1)
    await eventually(lambda: first.attempts, "the first share to be sent")
    await instance.provider.leave("node_2")
    second.deaf = False
    launching = instance.controller.launching
    launch = launching.launch

    async def launch_late(attempt_ids: Sequence[str]) -> None:
        monkeypatch.undo()
        first.obedient = True
        for share in list(first.attempts):
            first.started(share)
        await instance.provider.deliver("node_1")
        await launch(attempt_ids)

    monkeypatch.setattr(launching, "launch", launch_late)
    await instance.provider.join("node_2")
    await eventually(lambda: len(instance.attempts(gang)) == 2, "a second attempt")
    lost = instance.attempts(gang)[0]
    assert (lost["state"], lost["reason"]) == ("lost", "attempt_lost")
    assert "was not connected" in lost["message"]
    await instance.until(gang, "running")
    for share in shares(instance, gang):
        await end(instance, share, exit_code=0)
    assert (await instance.until(gang))["state"] == "completed"


async def test_a_share_that_never_came_is_sent_once_all_nodes_are_back(
    instance: Controlled,
):
    first = instance.hosts["node_1"]
    second = instance.hosts["node_2"] = FakeHost("node_2")
    await instance.provider.join("node_2")
    first.obedient = False
    second.deaf = True
    gang = await instance.submit(resources={"nodes": 2, "cpus": 3})
    await eventually(lambda: first.attempts, "the first share to be sent")
    await instance.provider.leave("node_1")
    await instance.provider.leave("node_2")
    second.deaf = False
    await instance.provider.join("node_2")
    await instance.settled()
    assert not second.attempts, "its other node is not connected"
    await instance.provider.join("node_1")
    await eventually(lambda: second.attempts, "the second share to be sent")
    first.obedient = True
    for share in list(first.attempts):
        first.started(share)
    await instance.provider.deliver("node_1")
    for share in shares(instance, gang):
        await end(instance, share, exit_code=0)
    assert (await instance.until(gang))["state"] == "completed"
    assert len(instance.attempts(gang)) == 1
