"""What `gpuyard top` shows, and what its keys do."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, Static
from textual.worker import WorkerCancelled

from gpuyard.cli.dashboard import (
    COLUMNS,
    Item,
    Seen,
    bar,
    disk_problems,
    foot,
    rows,
)
from gpuyard.cli.screen import Top
from gpuyard.domain.errors import RefusedError

NOW = 1000.0


def gpu(index: int, state: str, **more: Any) -> dict[str, Any]:
    return {
        "index": index,
        "uuid": f"GPU-{index}",
        "state": state,
        "memory_mb": 24576,
        "free_mb": 4096,
        "temperature_c": 60,
        "utilization": index / 10,
        "node": "here",
        "problem": None,
        "job_id": None,
        **more,
    }


async def settled(app: Top) -> None:
    """All that was asked is answered; a newer look at the server ends an older one."""
    while True:
        try:
            await app.workers.wait_for_complete()
        except WorkerCancelled:
            continue
        return


GPUS = [
    gpu(
        0,
        "llm_ready",
        model="qwen",
        models=["qwen"],
        idle_s=300,
        tasks_completed=23,
        job_id="job_m",
    ),
    gpu(
        1,
        "script_busy",
        script="whisper_transcribe",
        progress=0.45,
        eta_s=25,
        tasks_completed=2,
        job_id="job_s",
    ),
    gpu(
        2,
        "booting_llm",
        model="llama",
        models=["llama", "phi"],
        expected_at=NOW + 90,
        since=NOW - 30,
        idle_s=None,
        job_id="job_b",
    ),
    gpu(3, "script_busy", script="train", since=NOW - 60, job_id="job_t"),
    gpu(
        4,
        "quarantined",
        problem="Xid 79",
        utilization=None,
        temperature_c=None,
        free_mb=None,
    ),
]


METRICS = {"lr": 0.1, "loss": 2.5}


def job(
    name: str,
    gpus: Sequence[str] = (),
    eta_s: float | None = None,
    total: int | None = 4,
) -> Item:
    """A running job, as the API lists it."""
    return {
        "id": f"job_{name}",
        "name": name,
        "state": "running",
        "node": "here",
        "gpus": list(gpus),
        "started_at": NOW - 60,
        "progress": {"step": 3, "total": total, "eta_s": eta_s, "metrics": METRICS},
    }


BATCH = {
    "batch_id": "whisper-talks",
    "gpu_mode": "exclusive",
    "completed": 3,
    "failed": 1,
    "total_items": 125,
    "state": "running",
    "eta_s": 120,
    "ended_at": None,
}
SEEN = Seen(
    GPUS,
    [job("prepare", eta_s=25.0), job("t", gpus=["GPU-3"], total=None)],
    [BATCH, {**BATCH, "batch_id": "old", "ended_at": 1.0}],
    {"llm": 2, "script": 122},
    NOW,
)


def test_each_gpu_says_what_it_is_at() -> None:
    cells = [dict(zip(COLUMNS, row.cells, strict=True)) for row in rows(SEEN)]
    assert [(c["STATE"], c["WORK"], c["PROGRESS"], c["TASKS"]) for c in cells] == [
        ("LLM_READY", "qwen", "idle 5m00s", "23"),
        ("SCRIPT_BUSY", "whisper_transcribe", "████░░░░░░  45% ETA 25s", "2"),
        ("BOOTING_LLM", "llama + phi", "ready in 1m30s", ""),
        ("SCRIPT_BUSY", "train", "for 1m00s step 3 loss 2.5", ""),
        ("QUARANTINED", "Xid 79", "", ""),
        ("RUNNING", "prepare", "████████░░  75% ETA 25s loss 2.5", ""),
    ]
    assert (cells[5]["GPU"], cells[5]["NODE"]) == ("CPU", "here")
    assert (cells[0]["MEMORY"], cells[4]["MEMORY"], cells[4]["TEMP"]) == (
        "20.0/24 GB",
        "24 GB",
        "",
    )


def test_what_waits_and_the_batch_stand_below() -> None:
    assert foot(SEEN) == [
        "LLM queue: 2 waiting | script queue: 122 waiting | mode: BATCH (exclusive)",
        "whisper-talks: ░░░░░░░░░░   3% 4/125, 1 failed running ETA 2m00s",
    ]
    assert foot(Seen([], [], [], {}, NOW)) == [
        "LLM queue: 0 waiting | script queue: 0 waiting | mode: NORMAL"
    ]
    assert [bar(part) for part in (0.0, 1.0)] == ["░░░░░░░░░░   0%", "██████████ 100%"]


POOL = {
    "name": "warm",
    "nodes": {"booting": 1, "joined": 2, "ending": 0},
    "min": 0,
    "max": 4,
    "waiting": 3,
    "why": "3 jobs would wait longer than a node takes to come",
    "problem": None,
}
MACHINE = {"provider": "aws", "spot": True, "cost": "0.504", "currency": "USD"}


def test_pools_and_rented_machines_stand_below_where_there_are_some() -> None:
    machines = [MACHINE, {**MACHINE, "spot": False}, {**MACHINE, "cost": None}]
    seen = Seen([], [], [], {}, 0.0, pools=[POOL], machines=machines)
    assert foot(seen)[1:] == [
        "Pool warm (0 to 4 nodes): 1 booting, 2 joined; 3 waiting; 3 jobs would wait"
        " longer than a node takes to come",
        "Rented: 3 machines (3 at aws; 2 spot), 1.01 USD so far",
    ]
    broken = {**POOL, "problem": "slurm does not answer"}
    seen = Seen(
        [], [], [], {}, 0.0, pools=[broken], machines=[{**MACHINE, "cost": None}]
    )
    assert foot(seen)[1].endswith("3 waiting; slurm does not answer")
    assert foot(seen)[2] == "Rented: 1 machine (1 at aws; 1 spot), unknown so far"
    assert len(foot(Seen([], [], [], {}, 0.0))) == 1


def test_rows_can_be_sorted_and_chosen() -> None:
    assert [row.uuid for row in rows(SEEN, sort="LOAD")][:2] == ["GPU-3", "GPU-2"]
    assert next(row.cells[1] for row in rows(SEEN, sort="STATE")) == "BOOTING_LLM"
    assert [row.uuid for row in rows(SEEN, only="WHISPER")] == ["GPU-1"]


class Instance:
    """Stands for the server."""

    def __init__(self) -> None:
        self.did: list[tuple[str, str]] = []

    def look(self) -> Seen:
        return SEEN

    def act(self, action: str, target: str) -> str:
        if target == "job_t":
            raise RefusedError("It cannot be.", "Wait.")
        self.did.append((action, target))
        return f"{action}: {target}"


@pytest.mark.parametrize(
    ("keys", "did", "said"),
    [
        (["d"], [], "press d again to drain GPU-0"),
        (["d", "d"], [("drain", "GPU-0")], "drain: GPU-0"),
        (["u", "u"], [("unload", "qwen")], "unload: qwen"),
        (["down", "c", "c"], [("cancel", "job_s")], "cancel: job_s"),
        (["down", "u"], [], "nothing to unload on GPU 1"),
        (
            ["down", "down", "down", "down", "down", "c", "c"],
            [("cancel", "job_prepare")],
            "cancel: job_prepare",
        ),
        (["down", "down", "down", "down", "down", "d"], [], "nothing to drain on CPU"),
        (["d", "escape", "d"], [], "press d again"),
        (["down", "down", "down", "c", "c"], [], "It cannot be."),
    ],
)
def test_a_key_acts_when_it_is_pressed_twice(
    keys: list[str], did: list[tuple[str, str]], said: str
) -> None:
    instance = Instance()

    async def play() -> str:
        app = Top(instance.look, instance.act)
        async with app.run_test(size=(120, 20)) as pilot:
            await settled(app)
            await pilot.press(*keys)
            await settled(app)
            await pilot.pause()
            return str(app.query_one("#note").render())  # pyright: ignore

    assert said in asyncio.run(play())
    assert instance.did == did


async def until(pilot: Pilot[None], condition: Callable[[], bool]) -> None:
    """Wait until the screen has handled what was typed."""
    while not condition():
        await pilot.pause(0.01)


def test_the_screen_sorts_and_filters() -> None:
    async def play() -> tuple[str, int]:
        app = Top(lambda: SEEN, lambda _a, _t: "")
        async with app.run_test(size=(120, 20)) as pilot:
            await settled(app)
            await pilot.press("s", "slash")
            await until(pilot, lambda: isinstance(app.focused, Input))
            await pilot.press(*"train", "enter")
            await until(pilot, lambda: isinstance(app.focused, DataTable))
            head = str(app.query_one("#head", Static).render())
            return head, app.query_one(DataTable).row_count

    head, count = asyncio.run(play())
    assert "by STATE" in head
    assert "only 'train'" in head
    assert count == 1


def test_an_answer_that_arrives_while_the_screen_closes_is_dropped() -> None:
    async def play() -> None:
        app = Top(lambda: SEEN, lambda _a, _t: "")
        async with app.run_test(size=(120, 20)):
            await settled(app)
        app.show(SEEN)
        app.say("too late")

    asyncio.run(play())


def test_disks_that_are_nearly_full_are_told_below() -> None:
    nodes: list[dict[str, Any]] = [
        {"name": "one", "disk": {"problem": "the disk of /home is 93% full"}},
        {"name": "two", "disk": {"problem": None}},
        {"name": "three", "disk": None},
        {"name": "of an older server"},
    ]
    seen = Seen([], [], [], {}, NOW, disk_problems(nodes))
    assert foot(seen)[1:] == ["one: the disk of /home is 93% full"]
