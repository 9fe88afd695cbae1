"""Reading the ledger."""

import pytest

from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.ledger.ledger import Ledger
from gpuyard.ledger.queries import JobFilter
from gpuyard.ledger.writer import Writer
from tests.support.life import Life

pytestmark = pytest.mark.anyio


async def write(writer: Writer, events: list[Event]) -> None:
    writer.add_events(events)
    await writer.committed()


def job_row(job_id: str, name: str = "job", state: str = "queued", **more) -> Event:
    values = {"name": name, "state": state, "depends_on": [], **more}
    return Event(
        EventKind.JOB_SUBMITTED, 1.0, (Change(Table.JOBS, job_id, values),), job_id
    )


def spec_row(job_id: str, user: str | None) -> Event:
    body = {"command": ["true"], **({"user": user} if user else {})}
    change = Change(Table.SPECS, job_id, {"body": body})
    return Event(EventKind.JOB_SUBMITTED, 1.0, (change,), job_id)


def pages(ledger: Ledger, limit: int, **wanted) -> list[str]:
    """All ids, newest first, page by page."""
    found: list[str] = []
    while page := ledger.queries.jobs_page(
        limit=limit, before=found[-1] if found else None, wanted=JobFilter(**wanted)
    ):
        assert len(page) <= limit
        found += [row["id"] for row in page]
    return found


async def test_paging_misses_nothing_and_repeats_nothing(
    ledger: Ledger, writer: Writer
):
    life = Life()
    ids = [life.submit(name=f"job-{n % 7}") for n in range(1000)]
    await write(writer, life.journal)
    assert pages(ledger, 100) == ids[::-1]
    assert pages(ledger, 333) == ids[::-1]
    named = pages(ledger, 10, names=["job-1", "job-2"])
    assert named == [
        job_id for n, job_id in reversed(list(enumerate(ids))) if n % 7 in (1, 2)
    ]
    assert pages(ledger, 10, states=["running"]) == []


ODD = 'a"b$.c'  # would end a path in JSON, or begin one


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"names": ["train-*"]}, ["job_3", "job_2", "job_1"]),
        ({"names": ["train-?"]}, ["job_2", "job_1"]),
        ({"names": ["TRAIN-*"]}, []),
        ({"names": ["100%*", "[x]*"]}, ["job_5", "job_4"]),
        ({"names": ["x"]}, []),
        ({"labels": {"run": "7"}}, ["job_2", "job_1"]),
        ({"labels": {"run": "7", ODD: "y"}}, ["job_2"]),
        ({"labels": {"run": ""}}, []),
        ({"kinds": ["llm"]}, ["job_3"]),
        ({"user": "ann"}, ["job_4", "job_1"]),
        ({"user": "ann", "names": ["train-*"]}, ["job_1"]),
        ({"user": "nobody"}, []),
        ({"since": 30.0}, ["job_5", "job_4", "job_3"]),
        ({"since": 30.0, "states": ["failed"], "names": ["*"]}, ["job_4"]),
    ],
)
async def test_a_filter_admits_what_it_says(
    ledger: Ledger, writer: Writer, wanted: dict, found: list[str]
):
    label = {"run": "7"}
    rows = [
        job_row("job_1", "train-1", labels=label, created_at=10.0),
        job_row("job_2", "train-2", labels={**label, ODD: "y"}, created_at=20.0),
        job_row("job_3", "train-10", kind="llm", created_at=30.0),
        job_row("job_4", "100%_", "failed", labels={}, created_at=40.0),
        job_row("job_5", "[x]y", labels={"run": "8"}, created_at=50.0),
    ]
    users = {"job_1": "ann", "job_2": "bob", "job_3": None, "job_4": "ann"}
    specs = [spec_row(job_id, user) for job_id, user in users.items()]
    await write(writer, [*rows, *specs])
    assert pages(ledger, 2, **wanted) == found
    assert ledger.queries.job_ids(JobFilter(**wanted)) == found[::-1]


async def test_submitters_are_read_from_specs(ledger: Ledger, writer: Writer):
    await write(writer, [spec_row("job_1", "ann"), spec_row("job_2", None)])
    assert ledger.queries.submitters_of(["job_1", "job_2", "job_3"]) == {"job_1": "ann"}


async def test_paging_stays_put_while_jobs_come_and_change(
    ledger: Ledger, writer: Writer
):
    life = Life()
    ids = [life.submit() for _ in range(30)]
    await write(writer, life.journal)
    first = [row["id"] for row in ledger.queries.jobs_page(limit=10)]
    life.journal.clear()
    newer = life.submit()
    for job_id in first:
        life.settle(job_id)
    await write(writer, life.journal)
    second = [row["id"] for row in ledger.queries.jobs_page(limit=10, before=first[-1])]
    assert first + second == ids[:9:-1]
    assert newer not in second


@pytest.mark.parametrize(
    ("reference", "found"),
    [
        ("job_aaaa0001", ["job_aaaa0001"]),
        ("0001", ["job_cccc0001", "job_aaaa0001"]),
        ("aaaa0001", ["job_aaaa0001"]),
        ("0002", ["job_bbbb0002"]),
        ("001", []),  # too short for an ending, and no job's name
        ("train", ["job_cccc0001"]),  # the newest of the name
        ("100%", ["job_bbbb0002"]),
        ("%0001", []),
        ("job_aaaa____", []),
        ("_aaaa0001", ["job_aaaa0001"]),
        ("\\", []),
        ("", []),
        ("nobody", []),
    ],
)
async def test_what_a_person_may_mean(ledger: Ledger, writer: Writer, reference, found):
    await write(
        writer,
        [
            job_row("job_aaaa0001", "train"),
            job_row("job_bbbb0002", "100%"),
            job_row("job_cccc0001", "train"),
        ],
    )
    assert ledger.queries.find_job_ids(reference) == found


async def test_live_jobs_and_attempts_are_those_that_are_not_over(
    ledger: Ledger, writer: Writer
):
    life = Life()
    queued, running, done, lost = (
        life.submit(name=name) for name in ("queued", "running", "done", "lost")
    )
    attempt = life.run(running)
    life.end(life.run(done), exit_code=0)
    life.end(life.run(lost), reason="attempt_lost", lost=True)
    await write(writer, life.journal)
    assert [row.id for page in ledger.queries.live_jobs(most=1) for row in page] == [
        running,
        queued,
    ]
    assert [row["id"] for row in ledger.queries.live_attempts()] == [attempt]
    assert ledger.queries.job_counts() == {
        "queued": 1,
        "running": 1,
        "completed": 1,
        "failed": 1,
    }


async def test_a_jobs_attempts_come_in_order(ledger: Ledger, writer: Writer):
    life = Life()
    job_id = life.submit(retry_count=2)
    other = life.submit()
    made = []
    for _ in range(3):
        made.append(life.run(job_id))
        life.end(made[-1], exit_code=1)
    await write(writer, life.journal)
    attempts = ledger.queries.attempts_of([job_id, other])
    assert list(attempts) == [job_id]
    assert [row["id"] for row in attempts[job_id]] == made
    assert [row["number"] for row in attempts[job_id]] == [1, 2, 3]


async def test_a_job_is_found_by_its_idempotency_key(ledger: Ledger, writer: Writer):
    life = Life()
    job_id = life.submit(idempotency_key="k")
    await write(writer, life.journal)
    assert ledger.queries.jobs_by_idempotency_key(["k", "other"]) == {"k": job_id}
    assert ledger.queries.specs([job_id])[job_id] == {
        "command": ["true"],
        "idempotency_key": "k",
    }


async def test_checkpoints_oldest_first_and_only_kept_ones_use_a_blob(
    ledger: Ledger, writer: Writer
):
    life = Life()
    attempt = life.run(life.submit())
    first = life.save_checkpoint(attempt, sha256="a", created_at=5.0)
    # Two that were saved in the same moment come in the order in which they were
    # reported.
    second, third = (
        life.save_checkpoint(attempt, sha256="b", created_at=6.0) for _ in range(2)
    )
    life.record(
        Event(
            EventKind.CHECKPOINT_PRUNED,
            7.0,
            (Change(Table.CHECKPOINTS, first, {"kept": False}),),
        )
    )
    await write(writer, life.journal)
    job_id = life.attempts[attempt].job_id
    assert [row["id"] for row in ledger.queries.checkpoints_of(job_id)] == [
        first,
        second,
        third,
    ]
    assert ledger.queries.checkpoint_counts([job_id, "job_none"]) == {job_id: 2}
    assert (ledger.queries.blob_is_used("a"), ledger.queries.blob_is_used("b")) == (
        False,
        True,
    )
    assert ledger.queries.checkpoint(first)["kept"] is False
    assert ledger.queries.checkpoint("ckpt_none") is None


async def test_a_series_goes_on_over_attempts(ledger: Ledger, writer: Writer):
    def points(attempt_id: str, start: int) -> list[dict]:
        common = {"attempt_id": attempt_id, "job_id": "j", "value": 1.0, "at": 1.0}
        return [
            {**common, "name": name, "n": n, "step": start + n}
            for n in range(3)
            for name in ("loss", "lr")
        ]

    writer.add_points(points("attempt_2", 10))
    writer.add_points(points("attempt_1", 0))
    await writer.committed()
    assert [row["step"] for row in ledger.queries.series("j")["loss"]] == [
        0,
        1,
        2,
        10,
        11,
        12,
    ]
    assert set(ledger.queries.series("j")) == {"loss", "lr"}
    assert set(ledger.queries.series("j", ["lr"])) == {"lr"}
    assert ledger.queries.series("other") == {}


async def test_events_are_read_on_from_a_number(ledger: Ledger, writer: Writer):
    life = Life()
    one = life.submit()
    two = life.submit()
    life.settle(one)
    await write(writer, life.journal)
    assert [row["seq"] for row in ledger.queries.events_after(1, 10)] == [2, 3]
    assert [row["kind"] for row in ledger.queries.events_after(0, 10, one)] == [
        "job.submitted",
        "job.cancelled",
    ]
    assert len(ledger.queries.events_after(0, 2)) == 2
    assert two in {row["job_id"] for row in ledger.queries.events_after(0, 10)}
    assert ledger.queries.last_seq() == 3


async def test_a_gpu_that_left_its_node_is_not_listed(ledger: Ledger, writer: Writer):
    def gpu(uuid: str, **values) -> Event:
        return Event(EventKind.NODE_CHANGED, 1.0, (Change(Table.GPUS, uuid, values),))

    there = [
        gpu("b", node_id="n1", index=1),
        gpu("a", node_id="n1", index=0),
        gpu("c", node_id="n0", index=5),
    ]
    await write(
        writer, [*there, gpu("d", node_id="n1", index=2), gpu("d", node_id=None)]
    )
    assert [row["uuid"] for row in ledger.queries.gpus()] == ["c", "a", "b"]


async def test_more_ids_than_one_statement_takes(ledger: Ledger, writer: Writer):
    life = Life()
    job_id = life.submit()
    await write(writer, life.journal)
    wanted = [f"job_{n}" for n in range(70_000)] + [job_id]
    assert list(ledger.queries.jobs_by_id(wanted)) == [job_id]


def attempt_row(number: int, job_id: str, at: float, /, **more) -> Event:
    """An attempt that ran an hour, unless it says otherwise."""
    values = {
        "job_id": job_id,
        "state": "ended",
        "placements": [{"node_id": "n", "gpu_uuids": [f"GPU-{number % 2}"]}],
        "started_at": at - 3600.0,
        "ended_at": at,
        **more,
    }
    began_ms = int((at - 3600.0) * 1000)
    key = f"attempt_{began_ms:012x}7{number:019x}"
    return Event(EventKind.JOB_COMPLETED, 1.0, (Change(Table.ATTEMPTS, key, values),))


async def test_past_usage_is_summed_and_decayed(ledger: Ledger, writer: Writer):
    """By half after each half-life, without what is live, never ran or is too old."""
    now = 1_800_000_000.0
    day = 86_400.0
    shape = {"gpus": 1}
    jobs = [job_row(f"j{n}", project="a", shape=shape) for n in range(2)]
    other = job_row("j2", project=None, shape=shape)
    attempts = [
        attempt_row(1, "j0", now),
        attempt_row(2, "j1", now - day),
        attempt_row(3, "j1", now - 2.5 * day, ran_s=7200.0),
        attempt_row(4, "j2", now - day),
        attempt_row(5, "j2", now - 6 * day),
        attempt_row(6, "j2", now, started_at=None),
        attempt_row(7, "j2", now, state="running", ended_at=None),
    ]
    await write(writer, [*jobs, other, *attempts])
    found = ledger.queries.past_usage(now, day, 5, by_place=False)
    by_project = {row.project: row.seconds for row in found}
    half_hour = 1800.0 / day
    in_a = 2**-half_hour + 2 ** -(1 + half_hour) + 2 * 2 ** -(2.5 + 2 * half_hour)
    assert by_project.keys() == {"a", None}
    assert by_project["a"] == pytest.approx(3600.0 * in_a, rel=0.003)
    assert by_project[None] == pytest.approx(1800.0 * 2**-half_hour, rel=0.003)
    placed = ledger.queries.past_usage(now, day, 5, by_place=True)
    assert len(placed) == 3
    assert sum(row.seconds for row in placed) == pytest.approx(sum(by_project.values()))
