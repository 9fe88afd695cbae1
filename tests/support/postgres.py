"""A real PostgreSQL server for tests, and a new database for each that asks."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from itertools import count
from pathlib import Path

import psycopg
import pytest

from gpuyard.ledger.ledger import Ledger
from tests.support.components import require
from tests.support.ports import free_port
from tests.support.programs import run_program
from tests.support.wait import wait_until


class PostgresServer:
    """One server in a folder of its own; `start`, `stop` and `kill` may be called again
    and again.
    """

    def __init__(self, binaries: Path, *, durable: bool = False) -> None:
        """With `durable` it stands on a disk and syncs; a test's need not, as no test
        takes the machine's power.
        """
        self._binaries = binaries
        self._durable = durable
        # Root may not run a server, and the folders of pytest let nobody else in.
        self._user = (
            pwd.getpwnam("postgres")
            if os.geteuid() == 0
            else pwd.getpwuid(os.geteuid())
        )
        self.folder = Path(
            tempfile.mkdtemp(
                prefix="gpuyard-pg-", dir=None if durable else _quickest_folder()
            )
        )
        self.folder.chmod(0o711)
        self.port = free_port()
        self._numbers = count(1)
        self._process: subprocess.Popen[bytes] | None = None
        data = self.folder / "data"
        data.mkdir(mode=0o700)
        os.chown(data, self._user.pw_uid, self._user.pw_gid)
        self._run(
            "initdb",
            "-D",
            str(data),
            "-A",
            "trust",
            "-U",
            "gpuyard",
            "-N",
            "-E",
            "UTF8",
            "--locale=C.UTF-8",
        )

    def _arguments(self, program: str, *arguments: str) -> dict:
        extra = (
            {}
            if os.geteuid()
            else {
                "user": self._user.pw_uid,
                "group": self._user.pw_gid,
                "extra_groups": [],
            }
        )
        return {
            "args": [str(self._binaries / program), *arguments],
            "cwd": "/",
            **extra,
        }

    def _run(self, program: str, *arguments: str) -> None:
        options = self._arguments(program, *arguments)
        run_program(options.pop("args"), **options)

    def start(self) -> None:
        """Start it and wait until it answers."""
        settings = f"-p {self.port} -k  -c listen_addresses=127.0.0.1 -c max_connections=200".split(
            " "
        )
        settings += [] if self._durable else ["-F"]
        started = self._arguments(
            "postgres", "-D", str(self.folder / "data"), *settings
        )
        # Whatever ends the tests ends their server.
        started["args"] = ["setpriv", "--pdeathsig", "QUIT", *started["args"]]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(**started, stdout=log, stderr=log)
        wait_until(self._answers, what="PostgreSQL to answer")

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "log").read_text()
        try:
            psycopg.connect(self.url("postgres"), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop it: SIGINT rolls back what is under way, SIGQUIT is as abrupt as a
        crash.
        """
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(30)
            self._process = None

    def close(self) -> None:
        """Stop it for good and remove its folder."""
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str) -> str:
        """The address of a database here."""
        return f"postgresql://gpuyard@127.0.0.1:{self.port}/{database}"

    def execute(self, statement: str, database: str = "postgres") -> list[tuple]:
        """What a person at `psql` could do; returns its rows."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement)  # type: ignore[arg-type]
            return cursor.fetchall() if cursor.description else []

    def create(self) -> str:
        """The address of a new database without anything in it."""
        name = f"empty_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    @cached_property
    def _blank(self) -> str:
        self.execute("CREATE DATABASE blank")
        Ledger.open(self.url("blank")).close()
        return "blank"

    def ledger(self) -> str:
        """The address of a new ledger, empty and up to date: a copy, which is much
        quicker than migrating.
        """
        name = f"ledger_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {self._blank}")
        return self.url(name)

    def cut(self, database: str) -> int:
        """Cut every connection to a database (its name or address); returns how many
        there were.
        """
        name = database.rsplit("/", 1)[-1]
        rows = self.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            f"WHERE datname = '{name}' AND pid <> pg_backend_pid()"
        )
        return len(rows)


def _quickest_folder() -> str | None:
    """Memory, where there is plenty: each database is some three hundred files."""
    memory = Path("/dev/shm")
    return (
        str(memory)
        if memory.is_dir() and shutil.disk_usage(memory).free > 4 * 2**30
        else None
    )


def binaries() -> Path | None:
    """Where Debian, or PATH, has PostgreSQL's server."""
    installed = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/postgres"),
        key=lambda path: float(path.parts[4]),
    )
    on_path = shutil.which("postgres")
    return (
        installed[-1].parent
        if installed
        else Path(on_path).resolve().parent
        if on_path
        else None
    )


@contextmanager
def running_server() -> Iterator[PostgresServer]:
    """A running PostgreSQL server."""
    where = binaries()
    require("postgresql", where is not None)
    assert where is not None
    server = PostgresServer(where)
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A server that all tests share, each with databases of its own."""
    with running_server() as server:
        yield server
