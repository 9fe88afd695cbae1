"""A ledger in PostgreSQL, as a user has it: `gpuyard up --database`, and nothing else
is different.
"""

import stat
from urllib.parse import urlsplit

import pytest

from tests.support.instance import TestInstance
from tests.support.postgres import PostgresServer


@pytest.fixture
def address(postgres: PostgresServer) -> str:
    """An empty database, whose address holds a password (that the server does not ask
    for).
    """
    parts = urlsplit(postgres.create())
    return parts._replace(
        netloc=f"gpuyard:s3cret@{parts.hostname}:{parts.port}"
    ).geturl()


def test_jobs_run_from_a_database_and_its_password_shows_nowhere(
    instance: TestInstance, postgres: PostgresServer, address
):
    started = instance.run("up", "--database", "-", input=address + "\n")
    assert started.returncode == 0, started.stderr
    instance.ok("run", "--", "true")
    instance.ok("down")
    assert not instance.home.ledger.exists()
    assert stat.S_IMODE(instance.home.database.stat().st_mode) == 0o600
    # The next start remembers it, and its tables.
    (job,) = instance.json("jobs")["items"]
    assert job["state"] == "completed"
    assert instance.run("up", "--database", "sqlite").returncode == 4, (
        "a running server keeps the database it has"
    )
    instance.ok("down")
    for path in instance.home.root.rglob("*"):
        if path.is_file() and path != instance.home.database:
            assert b"s3cret" not in path.read_bytes(), path


def test_a_database_that_does_not_answer_is_one_clear_error(instance: TestInstance):
    refused = instance.run(
        "up", "--database", "postgresql://me:s3cret@127.0.0.1:9/instance"
    )
    assert refused.returncode == 5
    assert "Cannot reach the database at 127.0.0.1:9/instance" in refused.stderr
    assert (
        "s3cret" not in refused.stderr + (instance.home.logs / "server.log").read_text()
    )


def test_what_is_no_address_is_refused(instance: TestInstance):
    refused = instance.run("up", "--database", "mysql://me:s3cret@host/instance")
    assert refused.returncode == 2
    assert (
        "--database: is no PostgreSQL address (write"
        " postgresql://USER:PASSWORD@HOST:PORT/DATABASE" in refused.stderr
    )
    assert "s3cret" not in refused.stderr
