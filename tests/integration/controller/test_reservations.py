"""Reservations whose times are odd: clocks that are set, the past, and overlaps."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from gpuyard.domain.errors import InvalidInputError, RefusedError
from gpuyard.domain.reservations import Reservation, ReservationSpec
from gpuyard.ledger.tables import unused_gpus
from tests.support.controlled import Controlled
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio

HOUR = 3600.0


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def instance(tmp_path: Path) -> AsyncIterator[Controlled]:
    made = Controlled(tmp_path)
    made.host.gpu_count = 2
    await made.start()
    yield made
    await made.settled()
    made.check()
    await made.stop()


async def reserve(
    instance: Controlled, begins: str, ends: str, **fields: Any
) -> Reservation:
    given = {"project": "vision", "gpus": 1, "timezone": "Europe/Berlin"}
    spec = ReservationSpec(begins=begins, ends=ends, **{**given, **fields})
    return await instance.controller.reservations.add(spec, None)


@pytest.mark.parametrize(
    ("begins", "ends", "hours"),
    [
        ("2098-10-25 12:00", "2098-10-26 12:00", 25),
        ("2098-03-29 12:00", "2098-03-30 12:00", 23),
        ("2098-03-29T12:00+01:00", "2098-03-30 12:00", 23),
    ],
)
async def test_a_day_on_which_clocks_are_set_has_another_length(
    instance: Controlled, begins: str, ends: str, hours: int
):
    """It begins and ends when the clocks on the wall say so, also after a restart."""
    made = await reserve(instance, begins, ends)
    assert made.ends_at - made.begins_at == hours * HOUR
    await instance.restart()
    (known,) = instance.controller.reservations.listing()
    assert (known.begins_at, known.ends_at) == (made.begins_at, made.ends_at)
    assert known.timezone == "Europe/Berlin"


@pytest.mark.parametrize(
    ("begins", "field", "fault"),
    [
        ("2098-10-26 02:30", "begins", "comes twice in Europe/Berlin"),
        ("2098-03-30 02:30", "begins", "does not exist in Europe/Berlin"),
    ],
)
async def test_a_time_that_comes_twice_or_never_is_refused(
    instance: Controlled, begins: str, field: str, fault: str
):
    with pytest.raises(InvalidInputError, match=fault) as caught:
        await reserve(instance, begins, "2098-12-01 12:00")
    assert [one.field for one in caught.value.faults] == [field]
    assert instance.controller.reservations.listing() == []


async def test_the_hour_that_comes_twice_can_be_reserved_twice(instance: Controlled):
    """Of both GPUs, once before the clocks are set back and once after."""
    first = ("2098-10-26T02:00+02:00", "2098-10-26T03:00+02:00")
    second = ("2098-10-26T02:00+01:00", "2098-10-26T03:00+01:00")
    for begins, ends in (first, second):
        made = await reserve(instance, begins, ends, gpus=2)
        assert made.ends_at - made.begins_at == HOUR
    with pytest.raises(RefusedError) as caught:
        await reserve(instance, *second, project="text", gpus=1)
    # The zone has left summer time, so both are told with the offset of that moment.
    assert "from 2098-10-26 02:00+01:00 to 2098-10-26 03:00+01:00" in str(caught.value)
    assert "2 GPUs for project vision" in str(caught.value)
    assert "+02:00 to" not in str(caught.value)


@pytest.mark.parametrize(
    ("begins", "ends", "fault"),
    [
        ("2020-12-01 09:00", "2020-12-01 12:00", "2020-12-01 12:00 is not after now"),
        ("2098-12-01 09:00", "2098-12-01 09:00", "is not after it begins"),
        ("2098-12-01 09:00", "2098-11-30 09:00", "is not after it begins"),
        ("now", "now", "is not after it begins"),
    ],
)
async def test_one_that_is_over_or_ends_before_it_begins_is_refused(
    instance: Controlled, begins: str, ends: str, fault: str
):
    with pytest.raises(InvalidInputError, match=fault) as caught:
        await reserve(instance, begins, ends)
    assert [one.field for one in caught.value.faults] == ["ends"]


async def test_one_that_began_in_the_past_holds_at_once(instance: Controlled):
    made = await reserve(instance, "2020-12-01 09:00", "2098-12-01 12:00")
    assert (made.state, made.problem) == ("current", "")
    assert len(made.shares[0].gpu_uuids) == 1


async def test_reservations_may_overlap_as_long_as_there_are_gpus(instance: Controlled):
    span = ("2098-12-01 09:00", "2098-12-01 12:00")
    await reserve(instance, *span)
    await reserve(instance, *span, project="text")
    with pytest.raises(RefusedError, match="1 GPU cannot be reserved from"):
        await reserve(instance, "2098-12-01 11:00", "2098-12-01 13:00")
    after = await reserve(instance, "2098-12-01 12:00", "2098-12-01 13:00", gpus=2)
    assert after.state == "coming"


async def test_gpus_that_are_reserved_and_that_nobody_uses_are_kept(tmp_path: Path):
    """Neither those of the holder's jobs nor those that are lent count."""
    instance = Controlled(tmp_path, billing={"local_price_per_hour": "3600000"})
    instance.host.gpu_count = 2
    await instance.start()
    made = await reserve(instance, "now", "2098-12-01 12:00", gpus=2)
    assert await unused(instance) == 2
    gpu = {"resources": {"gpus": {"count": 1}}}
    own = await instance.submit(project="vision", **gpu)
    await instance.begun(own)
    lent = await instance.submit(project="text", preemptible=True, **gpu)
    await instance.begun(lent)
    assert await unused(instance) == 0
    await instance.finish(lent)
    await instance.until(lent)
    assert await unused(instance) == 1
    await instance.restart()
    await eventually(
        lambda: instance.core.view.node("node_1").state == "online", "its node"
    )
    assert await unused(instance) == 1
    await instance.controller.reservations.remove(made.id)
    assert await unused(instance) == 0
    rows = rows_of(instance)
    # Two until the first job came, and one from the end of the lent one on.
    assert [row["project"] for row in rows] == ["vision"] * 3
    for row in rows:
        seconds = float(row["cost"]) / 1000
        assert row["ran_s"] > 0
        assert seconds == pytest.approx(row["ran_s"], abs=1e-3)
    limits = instance.controller.retention.limits()
    jobs_before = rows[-1]["began_at"]
    instance.controller.retention.limits = lambda: replace(
        limits, jobs_before=jobs_before
    )
    removed = await instance.controller.retention.run()
    assert removed["unused_gpus"] == 2 == len(rows) - len(rows_of(instance))
    await instance.finish(own)
    await instance.settled()
    instance.check()
    await instance.stop()


async def test_after_a_fault_it_looks_again(
    instance: Controlled, monkeypatch: pytest.MonkeyPatch
):
    looks: list[str] = []

    def look() -> None:
        looks.append("look")
        raise RuntimeError("a fault")

    monkeypatch.setattr("gpuyard.controller.unused_gpus.LOOK_AGAIN_S", 0.001)
    monkeypatch.setattr(instance.controller.unused_gpus, "look", look)
    made = await reserve(instance, "now", "2098-12-01 12:00")
    await eventually(lambda: len(looks) == 1)
    await instance.controller.reservations.remove(made.id)
    await reserve(instance, "now", "2098-12-01 12:00")
    await eventually(lambda: len(looks) > 1)


async def unused(instance: Controlled) -> int:
    """Look now; how many are unused."""
    instance.controller.unused_gpus.look()
    await instance.core.committed()
    return len(instance.ledger.queries.unused_gpus())


def rows_of(instance: Controlled) -> list[dict[str, Any]]:
    with instance.ledger.engine.connect() as connection:
        found = connection.execute(sa.select(unused_gpus).order_by(unused_gpus.c.id))
        return [dict(row) for row in found.mappings()]
