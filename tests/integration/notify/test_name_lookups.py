"""Receivers whose names take for ever to be looked up."""

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from gpuyard.domain.webhooks import WebhookSpec
from gpuyard.notify.delivery import Delivery
from gpuyard.notify.delivery_result import DeliveryOutcome, DeliveryResult
from gpuyard.notify.payload import Payload
from gpuyard.notify.webhook import read_webhooks
from tests.support.receiver import receiver
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio
PAYLOAD = Payload("event_1", "job.failed", b"{}", "a job failed", 1.0, None)


@pytest.fixture
def lookups(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """How often each name was looked up. Those of `slow` get no answer while the test
    runs, those of `there` are this machine, after an address that refuses.
    """
    counted = Counter[str]()
    over = threading.Event()

    def look_up(host: Any, port: Any, *_: Any, **__: Any) -> list[Any]:
        name = host.decode() if isinstance(host, bytes) else host
        counted[name] += 1
        if name.endswith(".slow"):
            over.wait(30)
            raise socket.gaierror("no answer")
        stream = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*stream, (address, port)) for address in ("127.0.0.2", "127.0.0.1")]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    yield counted
    over.set()


async def deliver(delivery: Delivery, url: str) -> DeliveryResult:
    (hook,) = read_webhooks([WebhookSpec(url=url)], {})
    return await delivery.deliver(hook, PAYLOAD)


async def test_slow_lookups_are_in_nobody_elses_way(lookups: Counter[str]) -> None:
    delivery = Delivery(timeout_s=5)
    slow = [
        asyncio.create_task(deliver(delivery, f"http://{name}.slow/"))
        for name in "abcdefgh"
    ]
    with receiver() as there:
        await eventually(lambda: len(lookups) > 1, "the slow lookups to begin")
        answer = await deliver(delivery, f"http://x.there:{there.port}/hook")
        assert answer.outcome is DeliveryOutcome.DELIVERED
        assert not any(task.done() for task in slow)
        assert there.taken[0].headers["Host"] == f"x.there:{there.port}"
    for task in slow:
        task.cancel()
    await delivery.close()


async def test_a_name_is_looked_up_once_however_often_it_is_tried(
    lookups: Counter[str],
) -> None:
    delivery = Delivery(timeout_s=0.01)
    for _ in range(3):
        answer = await deliver(delivery, "http://a.slow/")
        assert answer.outcome is DeliveryOutcome.RETRIED
    assert lookups == {"a.slow": 1}
    await delivery.close()
