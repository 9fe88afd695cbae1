"""Prompts: durable ones against requests of `/v1`, what waiting ones weigh, and what the
gateway adds to the first word of an answer.
"""

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil

from benchmarks.bench import scaled, timed
from benchmarks.figures import Figure, alternate, in_rounds
from tests.support.instance import TestInstance, make_instance
from tests.support.wait import wait_until

GROUP = "prompts"
SLOTS = 64
ANSWER_S = 0.3
SERVER = Path(__file__).parent / "programs" / "model_server.py"


def measure(scale: float) -> Iterator[Figure]:
    """The same server for all, with its model loaded."""
    with serving() as instance:
        rounds = scaled(5, scale)
        yield durable(instance, rounds, scaled(200, scale, 20))
        yield first_word(instance, rounds, scaled(40, scale, 5))
        yield streams(instance, scaled(1000, scale, 20))
        yield waiting(instance, scaled(100_000, scale, 200))


@contextmanager
def serving() -> Iterator[TestInstance]:
    """An instance whose model `toy` is loaded, on one simulated GPU; the model `large`
    fits no GPU.
    """
    command = [sys.executable, str(SERVER), "{port}", str(ANSWER_S)]
    fields = f"command = {json.dumps(command)}\nboot_s = 1\n"
    with make_instance() as instance:
        instance.home.create()
        instance.home.settings.write_text(
            f"[models.toy]\n{fields}memory_gb = 16\nslots = {SLOTS}\npinned = true\n"
            f"[models.large]\n{fields}memory_gb = 80\n"
        )
        instance.ok("up", "--simulate-gpus", "1x24")
        wait_until(lambda: toy(instance)["state"] == "ready", what="the model")
        yield instance


def toy(instance: TestInstance) -> dict[str, object]:
    """The model, as `gpuyard models` lists it."""
    items = instance.json("models")["items"]
    return next(item for item in items if item["name"] == "toy")


def durable(instance: TestInstance, rounds: int, count: int) -> Figure:
    """All at once: as jobs until the last is recorded, and as requests of `/v1`."""
    bodies = [{"prompt": f"number {n}", "model": "toy"} for n in range(count)]
    with instance.client() as client:
        values, floors = alternate(
            rounds,
            lambda: timed(
                lambda: client.wait_for(*(job.id for job in client.submit(bodies)))
            ),
            lambda: asyncio.run(ask_all(instance, count)),
        )
    return Figure(
        GROUP,
        f"{count} prompts as jobs, {SLOTS} answered at once",
        values,
        "s",
        1.3,
        floors,
        "as requests of /v1",
    )


def client_of(instance: TestInstance) -> httpx.AsyncClient:
    """A client of the instance's `/v1`."""
    address = instance.address()
    return httpx.AsyncClient(
        base_url=f"{address.url}/v1/",
        headers={"Authorization": f"Bearer {address.token}"},
        timeout=120,
        limits=httpx.Limits(max_connections=None),
    )


def body_of(text: str, *, stream: bool = False) -> dict[str, object]:
    """A chat completion to ask for."""
    messages = [{"role": "user", "content": text}]
    return {"model": "toy", "messages": messages, "stream": stream}


async def ask_all(instance: TestInstance, count: int) -> float:
    """How long so many requests at once take, in seconds."""
    async with client_of(instance) as client:
        began = time.perf_counter()
        answers = await asyncio.gather(
            *(
                client.post("chat/completions", json=body_of(f"number {n}"))
                for n in range(count)
            )
        )
        taken = time.perf_counter() - began
    assert all(answer.is_success for answer in answers)
    return taken


def first_word(instance: TestInstance, rounds: int, count: int) -> Figure:
    """One request after the other, through the gateway and directly, in turn."""
    replicas = toy(instance)["replicas"]
    assert isinstance(replicas, list)
    gateway = client_of(instance)
    server = httpx.AsyncClient(base_url=f"http://127.0.0.1:{replicas[0]['port']}/v1/")
    with asyncio.Runner() as runner:
        through, direct = alternate(
            rounds * count,
            lambda: runner.run(until_first_word(gateway)) * 1000,
            lambda: runner.run(until_first_word(server)) * 1000,
        )
        runner.run(gateway.aclose())
        runner.run(server.aclose())
    return Figure(
        GROUP,
        "first word through the gateway",
        in_rounds(through, rounds),
        "ms",
        1.1 * statistics.median(direct) + 2,
        in_rounds(direct, rounds),
        "asking the model directly; the target is a tenth more, and 2 ms",
        absolute=True,
    )


async def until_first_word(client: httpx.AsyncClient) -> float:
    """Seconds until the first bytes of a streamed answer."""
    began = time.perf_counter()
    body = body_of("now", stream=True)
    async with client.stream("POST", "chat/completions", json=body) as answer:
        async for _ in answer.aiter_raw():
            return time.perf_counter() - began
    raise AssertionError("no answer came")


def streams(instance: TestInstance, count: int) -> Figure:
    """So many streamed answers asked for at the same moment."""

    async def failed() -> int:
        async with client_of(instance) as client:
            ends = await asyncio.gather(
                *(until_first_word(client) for _ in range(count)),
                return_exceptions=True,
            )
        return sum(isinstance(end, BaseException) for end in ends)

    errors = asyncio.run(failed())
    return Figure(GROUP, f"errors of {count:,} streams at once", [errors], "", 0)


def waiting(instance: TestInstance, count: int) -> Figure:
    """The memory of prompts whose model cannot be loaded."""
    process = psutil.Process(instance.pid("server"))
    before = process.memory_info().rss
    bodies = [{"prompt": f"number {n}", "model": "large"} for n in range(count)]
    with instance.client() as client:
        for start in range(0, count, 10_000):
            client.submit(bodies[start : start + 10_000])
    mb = (process.memory_info().rss - before) / 1e6
    return Figure(GROUP, f"memory of {count:,} waiting prompts", [mb], "MB", 60)
