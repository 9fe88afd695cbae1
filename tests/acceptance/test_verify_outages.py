"""Verification while its database or the server is away: a watch outlasts that, a run
ends with one clear error.
"""

import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.support.instance import TestInstance, gpuyard, make_instance
from tests.support.ports import free_port
from tests.support.postgres import PostgresServer, running_server
from tests.support.verifying import configure, executor, section
from tests.support.wait import wait_until

EXECUTORS = (
    executor("trusted6", "practice-6", trusted=True),
    executor("rented", "practice-6"),
)
# Two batches' worth of samples: making more would keep the trusted executor busy.
FEW_SAMPLES = section("verification", max_series=6, target=12)
# The server lets everybody in, but nobody who reads along must see it.
PASSWORD = "sesame-opens"


@pytest.fixture
def away() -> Iterator[PostgresServer]:
    """A PostgreSQL server that the test may stop."""
    with running_server() as server:
        yield server


@contextmanager
def watching(
    instance: TestInstance, every: str
) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """`gpuyard verify watch rented`, and the file of all it says."""
    log = instance.work / "watch.log"
    words = [*gpuyard(), "verify", "watch", "rented", "--every", every]
    with log.open("w") as file:
        process = subprocess.Popen(
            words,
            env=instance.environment,
            cwd=instance.work,
            text=True,
            stdout=file,
            stderr=file,
        )
    try:
        yield process, log
    finally:
        process.kill()
        process.wait()


def refuse(port: int, connections: int) -> None:
    """Accept so many connections where a database should be, and hang up."""
    with socket.create_server(("127.0.0.1", port)) as listening:
        listening.settimeout(60)
        for _ in range(connections):
            with closing(listening.accept()[0]):
                pass


@pytest.mark.timeout(300)
def test_a_watch_outlasts_its_database_and_a_server_elsewhere(
    away: PostgresServer,
) -> None:
    """It is given the server's address, and so does not start it itself."""
    url = away.create().replace("gpuyard@", f"gpuyard:{PASSWORD}@")
    port = free_port()
    with make_instance(GPUYARD_VERIFICATION__DATABASE=url) as instance:
        configure(instance, section("server", port=port), FEW_SAMPLES, *EXECUTORS)
        instance.ok("up")
        instance.environment["GPUYARD_URL"] = f"http://127.0.0.1:{port}"
        with watching(instance, "1s") as (process, log):
            del instance.environment["GPUYARD_URL"]
            wait_for(log, "EXECUTOR", 1)
            away.stop(signal.SIGQUIT)
            wait_for(log, "cannot be used", 1)
            refuse(away.port, 3)
            away.start()
            wait_for(log, "it works again", 1)
            wait_for(log, "passed", 2)
            instance.kill("server")
            wait_for(log, "gpuyard: The server at", 1)
            instance.ok("up")
            wait_for(log, "it works again", 2)
            wait_for(log, "passed", 3)
            away.stop(signal.SIGQUIT)
            wait_for(log, "cannot be used", 2)
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0
        said = log.read_text()
        told = ("cannot be used", "gpuyard: The server at", "it works again")
        assert [said.count(words) for words in told] == [2, 1, 2], said
        assert "Traceback" not in said and PASSWORD not in said, said


def wait_for(log: Path, words: str, times: int) -> None:
    """Until the watch has said this so many times."""
    wait_until(
        lambda: log.read_text().count(words) >= times, 120, f"{words!r} {times} times"
    )


def test_a_run_without_its_database_ends_with_one_clear_error(
    away: PostgresServer,
) -> None:
    url = away.create().replace("gpuyard@", f"gpuyard:{PASSWORD}@")
    slow = executor("slow", "practice-6", engine={"options": {"delay_s": 3}})
    with make_instance(GPUYARD_VERIFICATION__DATABASE=url) as instance:
        configure(instance, *EXECUTORS, slow)
        instance.ok("up")
        running = instance.popen("verify", "run", "slow", "--json")
        name = url.rsplit("/", 1)[1]

        def solves() -> bool:
            return bool(
                away.execute(
                    "select 1 from pg_tables where schemaname = 'verification'", name
                )
            ) and bool(
                away.execute(
                    "select 1 from verification.batches where released_at is not null",
                    name,
                )
            )

        wait_until(solves, what="the executors to begin")
        away.stop(signal.SIGQUIT)
        for done in (
            running,
            instance.popen("verify", "run", "rented"),
            instance.popen("verify", "status", "--json"),
        ):
            out, errors = done.communicate(timeout=60)
            assert (done.returncode, out) == (4, ""), (done.returncode, out, errors)
            (line,) = errors.strip().splitlines()
            assert (
                line.startswith("gpuyard: The verification database")
                and PASSWORD not in line
            )
        away.start()
        wait_until(lambda: not live_jobs(instance), what="the solver to be let go")


def live_jobs(instance: TestInstance) -> list[str]:
    """Jobs that are not over."""
    return [
        job["id"]
        for job in instance.json("jobs")["items"]
        if job["state"] in ("queued", "assigned", "running")
    ]


@pytest.mark.timeout(300)
def test_a_watch_outlasts_an_embedded_server_that_leaves_when_it_has_nothing_to_do() -> (
    None
):
    """Between two batches there is time to leave, on a busy machine, too."""
    with make_instance() as instance:
        configure(instance, section("server", idle_exit_s=1), FEW_SAMPLES, *EXECUTORS)
        with watching(instance, "20s") as (process, log):
            for batch in (1, 2):
                wait_for(log, "EXECUTOR", batch)
                wait_until(
                    lambda: instance.pid("server") is None, 120, "the server to leave"
                )
            assert (
                "passed" in log.read_text() and "does not answer" not in log.read_text()
            ), log.read_text()
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0
