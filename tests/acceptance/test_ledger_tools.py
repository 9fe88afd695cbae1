"""`gpuyard ledger`: check, backup, copy and rebuild, with a server running and without."""

import json
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

from tests.support.postgres import PostgresServer
from tests.support.yard import TestYard


def jobs(yard: TestYard) -> list[str]:
    return [job["id"] for job in yard.json("jobs")["items"]]


def test_what_was_tampered_with_is_found_and_rebuilt(yard: TestYard):
    job_id = yard.submit(["true"])
    yard.wait(job_id)
    report = yard.json("ledger", "check")
    assert report["ok"]
    assert report["rows"]["jobs"] == 1
    assert "rows are what the journal says" in yard.ok("ledger", "check")
    refused = yard.run("ledger", "rebuild")
    assert (refused.returncode, "A server works on this ledger" in refused.stderr) == (4, True)

    yard.ok("down")
    with closing(sqlite3.connect(yard.home.ledger)) as ledger, ledger:
        ledger.execute("UPDATE jobs SET exit_code = 1")
    found = yard.run("ledger", "check", "--json")
    assert found.returncode == 4
    (difference,) = json.loads(found.stdout)["differences"]
    assert difference == {"table": "jobs", "key": job_id, "column": "exit_code", "stored": 1, "replayed": 0}
    assert f"jobs {job_id}: exit_code is 1, the journal says 0" in yard.run("ledger", "check").stdout
    yard.ok("ledger", "rebuild")
    assert yard.json("ledger", "check")["ok"]
    assert yard.job(job_id).exit_code == 0


def test_a_backup_becomes_a_ledger_again(yard: TestYard, tmp_path: Path):
    yard.wait(yard.submit(["true"]))
    file = tmp_path / "saved.db"
    yard.ok("ledger", "backup", str(file))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    again = yard.run("ledger", "backup", str(file))
    assert (again.returncode, "exists already" in again.stderr) == (2, True)
    before = jobs(yard)
    yard.wait(yard.submit(["true"]))
    yard.ok("down")
    yard.ok("ledger", "copy", "--replace", str(file), "home")
    assert jobs(yard) == before


def test_where_no_ledger_is_none_is_made(yard: TestYard, tmp_path: Path):
    for words in (["check"], ["backup", "x.db"], ["rebuild"], ["copy", str(tmp_path / "missing.db"), "home"]):
        refused = yard.run("ledger", *words)
        assert (refused.returncode, "There is no ledger" in refused.stderr) == (3, True), words
    assert not yard.home.ledger.exists()


def test_a_yard_moves_to_postgresql_and_back(yard: TestYard, postgres: PostgresServer, tmp_path: Path):
    address = postgres.create()
    yard.wait(yard.submit(["true"]))
    before = jobs(yard)
    held = yard.run("ledger", "copy", "home", address)
    assert (held.returncode, "has this home open" in held.stderr) == (4, True)
    yard.ok("down")
    yard.ok("ledger", "copy", "home", address)
    full = yard.run("ledger", "copy", "home", address)
    assert (full.returncode, "is not empty" in full.stderr) == (4, True)

    yard.ok("up", "--database", address)
    assert jobs(yard) == before
    yard.wait(yard.submit(["true"]))
    after = jobs(yard)
    assert yard.json("ledger", "check")["ok"]
    yard.ok("ledger", "backup", str(tmp_path / "saved.db"))
    yard.ok("down")
    assert yard.json("ledger", "check")["rows"]["jobs"] == 2
    yard.ok("ledger", "copy", "--replace", address, str(yard.home.ledger))
    yard.ok("up", "--database", "sqlite")
    assert jobs(yard) == after
