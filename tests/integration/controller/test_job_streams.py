"""When a stream to a job can be opened, and why not."""

import asyncio

import pytest

from gpuyard.controller import job_streams
from gpuyard.domain.errors import RefusedError, TooManyRequestsError
from gpuyard.providers.node_streams import NodeStream
from tests.support.controlled import Controlled

pytestmark = pytest.mark.anyio


async def refusal(
    instance: Controlled, job_id: str, port: int = 0, *, stdin: bool = False
) -> str:
    with pytest.raises(RefusedError) as caught:
        async with instance.controller.streams.open(job_id, port, stdin=stdin):
            pass
    return str(caught.value)


async def test_only_a_job_that_runs_has_streams(instance: Controlled) -> None:
    first = await instance.submit(resources={"cpus": 4})
    await instance.begun(first)
    waiting = await instance.submit(resources={"cpus": 4})
    await instance.until(first, "running")
    assert "is queued and does not run yet" in await refusal(instance, waiting)
    assert instance.controller.streams.node_of(first, 80) == "node_1"
    assert "nothing listens at" in await refusal(instance, first)
    await instance.cancel(first)
    await instance.until(first, "cancelled")
    assert "is over (cancelled)" in await refusal(instance, first)


async def test_only_an_interactive_job_takes_input(instance: Controlled) -> None:
    plain = await instance.submit(resources={"cpus": 1})
    interactive = await instance.submit(resources={"cpus": 1}, interactive=True)
    await instance.until(plain, "running")
    await instance.until(interactive, "running")
    said = await refusal(instance, plain, stdin=True)
    assert "takes no input: it was submitted without -i" in said
    assert "nothing listens at" in await refusal(instance, interactive, stdin=True)


async def test_a_job_has_so_many_streams_at_a_time(
    instance: Controlled, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await instance.submit()
    await instance.until(job_id, "running")
    closed: list[NodeStream] = []

    async def open_stream(*_: object, **__: object) -> NodeStream:
        writer: asyncio.StreamWriter = None  # pyright: ignore[reportAssignmentType]
        closed.append(NodeStream(asyncio.StreamReader(), writer))
        return closed[-1]

    monkeypatch.setattr(instance.provider, "open_stream", open_stream)
    monkeypatch.setattr(job_streams, "MOST_STREAMS", 1)
    streams = instance.controller.streams
    async with streams.open(job_id):
        with pytest.raises(TooManyRequestsError, match="1 commands and connections"):
            async with streams.open(job_id):
                pass
    async with streams.open(job_id, 80):
        assert not closed[-1].closed.is_set()
    assert all(stream.closed.is_set() for stream in closed)
