"""What models teach outlives the server: how long they take, and when they are asked
for.
"""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.ledger.ledger import Ledger
from gpuyard.residency.demand_forecast import SLOT_S, SLOTS
from tests.acceptance.test_models import ask, models, said
from tests.acceptance.test_sharing import PATHS, instance_of, section, states
from tests.support.instance import TestInstance
from tests.support.wait import wait_until


@pytest.fixture
def learning() -> Iterator[TestInstance]:
    """Two GPUs; two models that are said to boot for a minute, one of which sleeps."""
    sections = [
        section("m", memory_gb=20, boot_s=60),
        section("s", memory_gb=20, boot_s=60, **PATHS),
    ]
    with instance_of("2x24", *sections) as instance:
        yield instance


def test_measured_times_outlive_the_server(learning: TestInstance) -> None:
    before = models(learning)["m"]
    assert (before["boot_s"], before["boot_p90_s"]) == (60, 60)
    assert said(ask(learning, "m")) == "m: hello"
    cold = models(learning)["m"]["boot_s"]
    assert 0 < cold < 30
    learning.ok("models", "unload", "m")
    wait_until(lambda: states(learning, "m") == ["absent"], what="it to be gone")
    assert said(ask(learning, "m")) == "m: hello"
    # The answer comes before the ledger knows how long the boot took.
    wait_until(lambda: len(timed(learning)) >= 3, what="the second boot's time")
    learning.kill("server", "agent")
    learning.ok("down")
    learning.ok("up", "--simulate-gpus", "2x24")
    after = models(learning)["m"]
    assert after["boot_s"] == cold
    assert timed(learning)[:3] == [
        "boot",
        "unload",
        "reboot",
    ], "the second boot was another kind of boot"


def timed(instance: TestInstance) -> list[str]:
    """What was timed, as the ledger knows it."""
    return [
        event["data"]["move"]
        for event in instance.json("events")["items"]
        if event["kind"] == "model.timed"
    ]


def teach(home: Path, *demand_shares: tuple[str, int, int, float]) -> None:
    """Let the ledger know these: model, slot, day, share."""

    async def write() -> None:
        ledger = Ledger.open(home / "ledger.db")
        writer = ledger.writer()
        writer.start()
        for model, slot, day, share in demand_shares:
            values = {"model": model, "slot": slot, "day": day, "share": share}
            change = Change(Table.DEMAND_SHARES, f"{model}/{slot}", values)
            writer.add_events(
                [Event(EventKind.MODEL_ASKED, time.time(), (change,), None, values)]
            )
        await writer.committed()
        await writer.close()
        ledger.close()

    asyncio.run(write())


def test_a_model_is_loaded_at_the_time_of_day_at_which_it_was_asked_for(
    learning: TestInstance,
) -> None:
    learning.ok("down")
    now = int(time.time() // SLOT_S)
    day = now // SLOTS
    teach(
        learning.home.root,
        *[("m", slot % SLOTS, day - 1, 0.9) for slot in (now, now + 1)],
    )
    learning.ok("up", "--simulate-gpus", "2x24")
    wait_until(
        lambda: states(learning, "m", "s") == ["ready", "absent"],
        what="it to be loaded",
    )
    assert models(learning)["m"]["answered"] == 0


def test_a_busy_model_gets_an_idle_gpu_as_well(learning: TestInstance) -> None:
    """And gives it back to the first script; one of them stays for the requests."""
    assert said(ask(learning, "m")) == "m: hello"
    with ThreadPoolExecutor(12) as pool:
        asking = [pool.submit(ask, learning, "m", f"sleep {n}") for n in [8] * 6]
        wait_until(
            lambda: len(models(learning)["m"]["replicas"]) == 2, what="a second replica"
        )
        for answer in asking:
            assert said(answer.result()) == "m: sleep 8"
    assert {gpu["state"] for gpu in learning.json("gpus")["items"]} == {"llm_ready"}
    job = learning.submit(["true"], resources={"gpus": 1, "cpus": 0.1})
    assert learning.wait(job).state == "completed"
    assert len(models(learning)["m"]["replicas"]) == 1
