"""Several processes on one database, and processes that are killed.

`GPUYARD_VERIFY_KILL_ROUNDS` sets how often at least: 6 times in `make test`, more in a
soak.
"""

import multiprocessing
import os
import random
from collections import Counter
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest
import sqlalchemy as sa

from gpuyard.storage.blobs import BlobStore
from gpuyard.verification.classes import TRAITS
from gpuyard.verification.database import Database
from gpuyard.verification.prompts import read_blob, split_file
from gpuyard.verification.records import Records
from gpuyard.verification.tables import prompts, samples, series, workloads
from tests.support.verification import B, answer_to, open_records, stock
from tests.support.verification_server import (
    STEPS,
    take_until_dry,
    verify_until_killed,
)

pytestmark = pytest.mark.both_databases
ROUNDS = int(os.environ.get("GPUYARD_VERIFY_KILL_ROUNDS", "6"))


@pytest.fixture(scope="module")
def context() -> ForkServerContext:
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(["tests.support.verification_server"])
    return made


def test_two_servers_that_take_at_once_never_take_the_same(
    context: ForkServerContext, place: Path | str, tmp_path: Path
):
    records = open_records(place)
    stock(records, BlobStore(tmp_path / "blobs"), B, workloads=25)
    servers = []
    for _ in range(2):
        hearing, saying = context.Pipe(duplex=False)
        starts, starting = context.Pipe(duplex=False)
        process = context.Process(
            target=take_until_dry, args=(place, saying, starts), daemon=True
        )
        process.start()
        saying.close()
        assert hearing.poll(30) and hearing.recv() == "ready"
        servers.append((process, hearing, starting))
    heard = _all({hearing: starting for _, hearing, starting in servers})
    for process, _, _ in servers:
        process.join(30)
        assert process.exitcode == 0
    assert all(heard), "each of them got some"
    taken = [one for mine in heard for one in mine]
    assert max(Counter(sample for _, _, sample in taken).values()) == 1, (
        "none was taken twice"
    )
    batches_of: dict[str, set[str]] = {}
    for batch, workload, _ in taken:
        batches_of.setdefault(workload, set()).add(batch)
    assert {len(batches) for batches in batches_of.values()} == {1}, (
        "a workload belongs to one batch"
    )
    assert records.counts(B).ready == 0
    assert len(batches_of) == 25


def _all(servers: dict[Connection, Connection]) -> list[list[tuple[str, str, str]]]:
    """What each of the servers takes: in each round both at once. SQLite's locks are
    not fair, so that without rounds one might be through before the other's first turn.
    """
    heard: dict[Connection, list[tuple[str, str, str]]] = {
        hearing: [] for hearing in servers
    }
    left = set(servers)
    while left:
        for hearing in left:
            with suppress(BrokenPipeError):  # it is through
                servers[hearing].send("go")
        for hearing in list(left):
            assert hearing.poll(60), "a server says nothing"
            try:
                heard[hearing] += hearing.recv()
            except EOFError:
                left.remove(hearing)
    return list(heard.values())


def test_two_processes_make_one_new_database(
    context: ForkServerContext, place: Path | str
):
    processes = [
        context.Process(target=open_records, args=(place,), daemon=True)
        for _ in range(4)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 4
    assert open_records(place).events() == []


def test_a_process_that_is_killed_at_any_step_leaves_nothing_half_made(
    context: ForkServerContext, place: Path | str, tmp_path: Path
):
    moments = random.Random(7)
    died_in = Counter[str]()
    done = Counter[str]()
    took = Counter[str]()
    rounds = 0
    while rounds < ROUNDS or not set(STEPS) <= set(died_in):
        rounds += 1
        step = moments.choice([name for name in STEPS if not died_in[name]] or [""])
        heard = killed_after(
            context, place, tmp_path / "blobs", moments.randint(2, 90), step
        )
        died_in[heard[-1][0]] += 1
        done.update(what.split()[0] for _, what in heard if what.endswith(" done"))
        took.update(what for step, what in heard if step == "took")
        check(place, tmp_path / "blobs", set(took))
    assert not took or max(took.values()) == 1
    assert set(done) == set(STEPS), "each step came to its end"
    assert took


def killed_after(
    context: ForkServerContext,
    place: Path | str,
    root: Path,
    messages: int,
    step: str = "",
) -> list[tuple[str, str]]:
    """Let a new process go on until it has said so much and then begins this step, if
    one is given; kill it; what it said.
    """
    hearing, saying = context.Pipe(duplex=False)
    starts, starting = context.Pipe(duplex=False)
    process = context.Process(
        target=verify_until_killed, args=(place, root, saying, starts), daemon=True
    )
    process.start()
    saying.close()
    starts.close()
    heard: list[tuple[str, str]] = []
    while len(heard) < messages or (step and heard[-1] != (step, "begin")):
        assert hearing.poll(60), "the process says nothing"
        heard.append(hearing.recv())
        if heard[-1][1] == "begin":
            starting.send("go")
    process.kill()
    process.join()
    with suppress(EOFError, OSError):
        while True:
            message = hearing.recv()
            if message[1] != "begin":  # that one was not let go on
                heard.append(message)
    return heard


def check(place: Path | str, root: Path, took: set[str]) -> None:
    """What a process that starts now finds: series with their files, workloads whole,
    answers all or none.
    """
    database = Database.open(place)
    records = Records(database)
    blobs = BlobStore(root)
    size = TRAITS[B].prompts
    with database.reading() as tx:
        if database.sqlite:
            assert tx.execute(sa.text("PRAGMA integrity_check")).scalar() == "ok"
        live = (
            tx.execute(sa.select(series.c.blob).where(series.c.retired_at.is_(None)))
            .scalars()
            .all()
        )
        works = tx.execute(sa.select(workloads)).all()
        wanted = (
            sa.select(
                samples.c.workload_id,
                samples.c.id,
                samples.c.check_id,
                series.c.blob,
                prompts.c.content,
                prompts.c.answer,
            )
            .select_from(prompts)
            .join(samples)
            .join(series)
        )
        rows = tx.execute(wanted).all()
    assert len(live) <= 18
    for blob in live:
        assert len(split_file(read_blob(blobs, blob, size))) == size
    for work in works:
        mine = [row for row in rows if row.workload_id == work.id]
        assert len(mine) == size == len({row.content for row in mine})
        expected = {
            answer_to(row.content, work.seed) if work.finished_at else None
            for row in mine
        }
        assert {row.answer for row in mine} == expected, "answers are there, or none is"
        if work.retired_at is None:
            assert set(split_file(read_blob(blobs, work.blob, size))) == {
                row.content for row in mine
            }
            assert all(
                row.content in split_file(read_blob(blobs, row.blob, size))
                for row in mine
            )
    there = {row.id: row.check_id for row in rows}
    assert all(there[one] for one in took if one in there), "what was given out is used"
    assert records.counts(B).series == len(live)
    database.close()
