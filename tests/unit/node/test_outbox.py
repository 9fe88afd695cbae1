"""Reports on their way: numbered, in order, and bounded while nobody takes them."""

import asyncio

from gpuyard.domain import wire, wire_frames
from gpuyard.node import outbox
from gpuyard.node.outbox import Outbox


class Writer:
    """Takes frames as a StreamWriter does; it breaks at frame number `breaks_at`."""

    def __init__(self, breaks_at=None):
        self.reports = []
        self._breaks_at = breaks_at

    def write(self, frames):
        while frames:
            end = 4 + wire_frames.frame_length(frames[:4])
            self.reports.append(wire_frames.decode_readable(frames[4:end]))
            frames = frames[end:]

    async def drain(self):
        if self._breaks_at is not None and len(self.reports) >= self._breaks_at:
            raise ConnectionResetError


def started(number):
    return wire.Started(f"a{number}", 1.0, number)


async def delivered(box, writer=None, then=()):
    """What a link is given: first what waits, and then what is put meanwhile."""
    writer = writer or Writer()
    task = asyncio.create_task(box.deliver(writer))
    for body in (None, *then):
        if body:
            box.put(body)
        for _ in range(3):
            await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    return [(report.seq, report.body) for report in writer.reports]


def filled():
    box = Outbox()
    for number in (1, 2, 3):
        box.put(started(number))
    return box


def wanted(*numbers):
    return [(number, started(number)) for number in numbers]


def test_each_link_is_given_all_that_was_not_acknowledged_and_then_what_comes():
    async def scenario():
        box = filled()
        assert await delivered(box) == wanted(1, 2, 3)
        box.acknowledge(2)
        assert await delivered(box, then=[started(4), started(5)]) == wanted(3, 4, 5)

    asyncio.run(scenario())


def test_an_acknowledgement_of_what_is_gone_or_was_never_sent_is_harmless():
    async def scenario():
        box = filled()
        box.acknowledge(2)
        box.acknowledge(1)
        assert await delivered(box) == wanted(3)
        box.acknowledge(99)
        assert await delivered(box) == []

    asyncio.run(scenario())


def test_a_link_that_breaks_loses_nothing():
    async def scenario():
        box = filled()
        assert await delivered(box, Writer(breaks_at=1), then=[started(4)]) == wanted(
            1, 2, 3
        )
        assert await delivered(box) == wanted(1, 2, 3, 4)

    asyncio.run(scenario())


def test_while_nobody_takes_them_progress_is_dropped_and_nothing_else(monkeypatch):
    monkeypatch.setattr(outbox, "_MAX_WAITING", 100)
    box = Outbox()
    for number in range(1000):
        box.put(wire.ProgressSeen("a", {"step": number}))
        if number % 50 == 0:
            box.put(started(number))
    reports = asyncio.run(delivered(box))
    assert len(reports) <= 101
    assert [body.pid for _, body in reports if isinstance(body, wire.Started)] == list(
        range(0, 1000, 50)
    )
    assert [seq for seq, _ in reports] == sorted(seq for seq, _ in reports)


def test_only_the_newest_look_at_the_gpus_waits():
    box = Outbox()
    for number in range(3):
        box.put(
            wire.GpusSeen(
                [wire.GpuStatus("GPU-a", 0, "T4", 15360, temperature_c=number)]
            )
        )
        box.put(started(number))
    sent = asyncio.run(delivered(box))
    assert [type(body).__name__ for _, body in sent] == [
        "Started",
        "Started",
        "GpusSeen",
        "Started",
    ]
    assert sent[2][1].gpus[0].temperature_c == 2
    assert [seq for seq, _ in sent] == [2, 4, 5, 6]


def test_a_report_that_the_server_would_refuse_is_dropped() -> None:
    box = Outbox()
    for step, at in ((2**53 + 1, 1.0), (1, -1.0), (1, 1.7e12)):
        point = wire.SeriesPoint("wandb/loss", 0, step, 1.0, at)
        box.put(wire.ProgressSeen("a1", {}, [point]))
    box.put(started(1))
    reports = asyncio.run(delivered(box))
    assert reports == [(1, started(1))]
