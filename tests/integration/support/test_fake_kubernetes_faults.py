"""What the fake cluster can do wrong."""

import asyncio
import json
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime

import aiohttp
import pytest

from tests.integration.support.conftest import CPU, Client, with_condition
from tests.support.kubernetes import Cluster
from tests.support.kubernetes.manifests import job
from tests.support.wait import eventually

Connect = Callable[..., Client]


@pytest.fixture(autouse=True)
def _lift(cluster: Cluster) -> None:
    cluster.faults.lift()


@pytest.mark.parametrize("code", [500, 503, 429])
def test_errors_instead_of_answers(cluster: Cluster, kube: Client, code: int) -> None:
    fault = cluster.faults.answer(code, "GET", "/nodes$", times=2, retry_after_s=7)
    for _ in range(2):
        error = kube.refused(kube.core.list_node())
        assert error.status == code
        assert json.loads(error.body)["code"] == code
        assert (error.headers.get("Retry-After") == "7") == (code != 500)
    assert kube.do(kube.core.list_node()).items
    assert fault.met == 2


def test_a_connection_cut_before_and_after(cluster: Cluster, kube: Client) -> None:
    cluster.faults.cut("POST", "/jobs$")
    with pytest.raises(aiohttp.ClientError):
        kube.create(job("before"))
    assert cluster.get("jobs", "before") is None
    cluster.faults.cut_after("POST", "/jobs$")
    with pytest.raises(aiohttp.ClientError):
        kube.create(job("after"))
    with_condition(cluster, "after", "Complete")
    assert (
        kube.refused(kube.batch.create_namespaced_job("default", job("after"))).status
        == 409
    )


def test_what_hangs_goes_on_when_it_is_released(cluster: Cluster, kube: Client) -> None:
    fault = cluster.faults.hang("POST", "/jobs$")

    async def scenario() -> None:
        task = asyncio.create_task(
            kube.batch.create_namespaced_job("default", job("held"))
        )
        await eventually(lambda: fault.met)
        assert cluster.get("jobs", "held") is None
        fault.release()
        await task

    kube.do(scenario())
    with_condition(cluster, "held", "Complete")


def test_connections_that_are_reset(cluster: Cluster, kube: Client) -> None:
    async def scenario() -> None:
        reply = await kube.core.list_node(watch=True, _preload_content=False)
        assert json.loads(await reply.content.readline())["type"] == "ADDED"
        cluster.faults.reset_connections()
        while await reply.content.readline():
            pass

    with pytest.raises(aiohttp.ClientError):
        kube.do(scenario())


def test_fields_that_are_missing(cluster: Cluster, kube: Client) -> None:
    cluster.faults.drop("items.status", "metadata.resourceVersion", path="/nodes$")
    found = kube.do(kube.core.list_node())
    assert found.metadata.resource_version is None
    assert all(each.status is None for each in found.items)
    assert kube.do(kube.core.list_node()).items[0].status


def test_requests_are_counted_and_the_clock_is_shifted(connect: Connect) -> None:
    with Cluster([CPU]) as cluster:
        kube = connect(cluster)
        cluster.faults.shift_clock(3600)
        made = kube.create(job("later"))
        kube.do(kube.batch.list_namespaced_job("default"))
        _, _, headers = kube.do(kube.version.get_code_with_http_info())
        server = parsedate_to_datetime(headers["Date"])
        assert abs((server - made.metadata.creation_timestamp).total_seconds()) < 30
        assert made.metadata.creation_timestamp.timestamp() > time.time() + 3000
        assert cluster.faults.count("jobs", "create") == 1
        assert cluster.faults.count("jobs") == 2
        assert cluster.faults.count("/version") == 1
