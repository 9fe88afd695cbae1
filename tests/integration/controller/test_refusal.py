"""Requests that can never be met are refused at once, and nothing of them is queued."""

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from gpuyard.controller.intake import MAX_JOBS
from gpuyard.domain.errors import CapacityError, InvalidInputError, NotFoundError
from tests.support.controlled import Controlled

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("resources", "said"),
    [
        ({"gpus": {"count": 8}}, ["has 2 GPUs, 8 needed", "2 × Tesla T4 (16 GB)"]),
        (
            {"gpus": {"count": 1, "memory_gb": 80}},
            ["at least 80 GB", "2 × Tesla T4 (16 GB)"],
        ),
        ({"gpus": {"gpu_class": "h100"}}, ["h100", "Tesla T4"]),
        (
            {"gpus": {"count": 1, "uuid": ["GPU-nowhere"]}},
            ["does not have GPU-nowhere"],
        ),
        ({"cpus": 64}, ["has 4 cores, 64 needed", "4 cores"]),
        ({"memory_gb": "1TB"}, ["16 GB of memory", "1 TB needed"]),
        ({"nodes": 3}, ["asks for 3 nodes at once, and only 1"]),
    ],
)
async def test_more_than_there_will_ever_be_is_refused_with_the_largest_that_fits(
    instance: Controlled, resources, said
):
    instance.host.gpu_count = 2
    await instance.provider.join("node_1")
    with pytest.raises(CapacityError) as caught:
        await instance.submit(resources=resources)
    assert all(
        words in str(caught.value) for words in [*said, "The largest node is node_1"]
    )
    assert instance.ledger.queries.jobs_page(limit=10) == []


async def test_one_impossible_job_refuses_the_whole_list(instance: Controlled):
    with pytest.raises(CapacityError):
        await instance.controller.requests.submit(
            [{"command": ["true"]}, {"command": ["true"], "resources": {"cpus": 64}}]
        )
    assert instance.ledger.queries.jobs_page(limit=10) == []


async def test_faults_are_numbered_when_several_jobs_come(instance: Controlled):
    good = {"command": ["true"]}
    bad = {"command": ["true"], "priority": 9}
    with pytest.raises(InvalidInputError) as caught:
        await instance.controller.requests.submit([good, bad, {**good, "nmae": "x"}])
    assert [fault.field for fault in caught.value.faults] == ["1.priority", "2.nmae"]
    with pytest.raises(InvalidInputError) as caught:
        await instance.controller.requests.submit([good, {**good, "provider": "none"}])
    assert [fault.field for fault in caught.value.faults] == ["1.provider"]
    with pytest.raises(InvalidInputError) as caught:
        await instance.submit(priority=9)
    assert caught.value.faults[0].field == "priority"


async def test_the_last_of_many_jobs_is_validated_before_the_first_is_queued(
    instance: Controlled,
):
    good = {"command": ["true"]}
    bad = {"command": ["true"], "priority": 9}
    with pytest.raises(InvalidInputError) as caught:
        await instance.controller.requests.submit([good] * 1000 + [bad])
    assert [fault.field for fault in caught.value.faults] == ["1000.priority"]
    with pytest.raises(InvalidInputError) as caught:
        await instance.controller.requests.submit([good, *[bad] * 10_000])
    assert 100 <= len(caught.value.faults) <= 200
    assert instance.ledger.queries.jobs_page(limit=10) == []
    assert not instance.core.view.jobs


@pytest.mark.parametrize("count", [0, MAX_JOBS + 1])
async def test_too_few_or_too_many_jobs(instance: Controlled, count):
    with pytest.raises(
        InvalidInputError, match=rf"holds {count} jobs \(send 1 to {MAX_JOBS} at once\)"
    ):
        await instance.controller.requests.accept(
            [msgspec.Raw(b'{"command":["true"]}')] * count
        )


async def test_what_is_only_in_use_is_not_refused(instance: Controlled):
    ids = [await instance.submit(resources={"cpus": 4}) for _ in range(3)]
    assert [instance.job(job_id)["state"] for job_id in ids[1:]] == ["queued"] * 2


async def test_a_node_that_is_away_still_counts(instance: Controlled):
    await instance.provider.leave("node_1")
    await instance.submit(resources={"cpus": 4})
    with pytest.raises(CapacityError):
        await instance.submit(resources={"cpus": 5})


async def test_an_unknown_provider_is_named_with_those_there_are(instance: Controlled):
    with pytest.raises(
        InvalidInputError,
        match=r"provider: there is no provider 'cloud' \(configured here: fake\)",
    ):
        await instance.submit(provider="cloud")


@pytest.mark.parametrize(
    "place", [{"provider": "queue"}, {"allowed": {"providers": ["queue"]}}]
)
async def test_what_needs_an_agent_is_refused_where_there_is_none(
    instance: Controlled, place: dict[str, object], monkeypatch: pytest.MonkeyPatch
):
    providers = instance.controller.providers
    queue = cast("Any", SimpleNamespace(containers=False))
    monkeypatch.setitem(providers, "queue", queue)
    with pytest.raises(
        InvalidInputError,
        match=r"providers?: is queue, which .*need an agent.*name fake, or none",
    ):
        await instance.submit(**place, interactive=True)


async def test_an_unknown_job_is_not_found(instance: Controlled):
    with pytest.raises(NotFoundError, match="There is no job 'nobody'"):
        instance.controller.requests.find("nobody")


async def test_an_ambiguous_reference_lists_what_it_could_be(
    instance: Controlled, monkeypatch: pytest.MonkeyPatch
):
    ids = [await instance.submit() for _ in range(2)]
    monkeypatch.setattr(instance.ledger.queries, "find_job_ids", lambda *_: ids)
    with pytest.raises(InvalidInputError, match=f"could be {ids[0]}, {ids[1]}"):
        instance.controller.requests.find("dddd")
