"""`gpuyard ledger`: check, backup, copy and rebuild, with a server running and
without.
"""

import json
import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

from tests.support.instance import TestInstance
from tests.support.postgres import PostgresServer


def jobs(instance: TestInstance) -> list[str]:
    return [job["id"] for job in instance.json("jobs")["items"]]


def test_what_was_tampered_with_is_found_and_rebuilt(instance: TestInstance):
    job_id = instance.submit(["true"])
    instance.wait(job_id)
    report = instance.json("ledger", "check")
    assert report["ok"]
    assert report["rows"]["jobs"] == 1
    assert "rows are what the journal says" in instance.ok("ledger", "check")
    refused = instance.run("ledger", "rebuild")
    assert (refused.returncode, "A server works on this ledger" in refused.stderr) == (
        4,
        True,
    )

    instance.ok("down")
    with closing(sqlite3.connect(instance.home.ledger)) as ledger, ledger:
        ledger.execute("UPDATE jobs SET exit_code = 1")
    found = instance.run("ledger", "check", "--json")
    assert found.returncode == 4
    (difference,) = json.loads(found.stdout)["differences"]
    assert difference == {
        "table": "jobs",
        "key": job_id,
        "column": "exit_code",
        "stored": 1,
        "replayed": 0,
    }
    assert (
        f"jobs {job_id}: exit_code is 1, the journal says 0"
        in instance.run("ledger", "check").stdout
    )
    instance.ok("ledger", "rebuild")
    assert instance.json("ledger", "check")["ok"]
    assert instance.job(job_id).exit_code == 0


def test_a_backup_becomes_a_ledger_again(instance: TestInstance, tmp_path: Path):
    instance.wait(instance.submit(["true"]))
    file = tmp_path / "saved.db"
    instance.ok("ledger", "backup", str(file))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    again = instance.run("ledger", "backup", str(file))
    assert (again.returncode, "exists already" in again.stderr) == (2, True)
    before = jobs(instance)
    instance.wait(instance.submit(["true"]))
    instance.ok("down")
    instance.ok("ledger", "copy", "--replace", str(file), "home")
    assert jobs(instance) == before


def test_where_no_ledger_is_none_is_made(instance: TestInstance, tmp_path: Path):
    for words in (
        ["check"],
        ["backup", "x.db"],
        ["rebuild"],
        ["copy", str(tmp_path / "missing.db"), "home"],
    ):
        refused = instance.run("ledger", *words)
        assert (refused.returncode, "There is no ledger" in refused.stderr) == (
            3,
            True,
        ), words
    assert not instance.home.ledger.exists()


def test_a_instance_moves_to_postgresql_and_back(
    instance: TestInstance, postgres: PostgresServer, tmp_path: Path
):
    address = postgres.create()
    instance.wait(instance.submit(["true"]))
    before = jobs(instance)
    held = instance.run("ledger", "copy", "home", address)
    assert (held.returncode, "has this home open" in held.stderr) == (4, True)
    instance.ok("down")
    instance.ok("ledger", "copy", "home", address)
    full = instance.run("ledger", "copy", "home", address)
    assert (full.returncode, "is not empty" in full.stderr) == (4, True)

    instance.ok("up", "--database", address)
    assert jobs(instance) == before
    instance.wait(instance.submit(["true"]))
    after = jobs(instance)
    assert instance.json("ledger", "check")["ok"]
    instance.ok("ledger", "backup", str(tmp_path / "saved.db"))
    instance.ok("down")
    assert instance.json("ledger", "check")["rows"]["jobs"] == 2
    instance.ok("ledger", "copy", "--replace", address, str(instance.home.ledger))
    instance.ok("up", "--database", "sqlite")
    assert jobs(instance) == after


def test_a_damaged_ledger_is_told_and_restored(instance: TestInstance, tmp_path: Path):
    saved = instance.submit(["true"])
    instance.wait(saved)
    instance.ok("ledger", "backup", str(tmp_path / "saved.db"))
    instance.wait(instance.submit(["true"]))
    refused = instance.run("ledger", "restore", str(tmp_path / "saved.db"))
    assert refused.returncode == 4, "a server runs"
    instance.ok("down")
    whole = instance.home.ledger.read_bytes()
    page = 4096
    with instance.home.ledger.open("rb+") as ledger:
        for number in range(2, len(whole) // page, 2):
            ledger.seek(number * page)
            ledger.write(os.urandom(page))
    for words in (["up"], ["doctor"], ["jobs"]):
        told = instance.run(*words)
        assert told.returncode != 0
        assert "damaged: " in told.stdout + told.stderr
        assert "gpuyard ledger restore FILE" in told.stdout + told.stderr
    (tmp_path / "broken.db").write_bytes(instance.home.ledger.read_bytes())
    broken = instance.run("ledger", "restore", str(tmp_path / "broken.db"))
    assert "broken.db is damaged" in broken.stderr
    report = json.loads(
        instance.ok("ledger", "restore", str(tmp_path / "saved.db"), "--json")
    )
    assert Path(report["kept"]).stat().st_size == len(whole)
    assert jobs(instance) == [saved]
    assert instance.json("ledger", "check")["ok"]
    instance.wait(instance.submit(["true"]))


def test_a_restored_backup_brings_no_revoked_token_back(
    instance: TestInstance, tmp_path: Path
):
    revoked = instance.json("user", "add", "ana")["token"]
    instance.json("user", "add", "ben")
    saved = str(tmp_path / "saved.db")
    instance.ok("ledger", "backup", saved)
    (token_id,) = (t["id"] for t in tokens(instance) if t["user"] == "ana")
    instance.ok("token", "revoke", token_id)
    instance.ok("down")
    told = instance.ok("ledger", "restore", saved)
    assert "2 tokens of users ended" in told
    assert tokens(instance) == []
    url = instance.address().url
    there = {"GPUYARD_URL": url, "GPUYARD_TOKEN": revoked}
    assert "no valid token" in instance.run("whoami", env=there).stderr
    assert instance.json("ledger", "check")["ok"]
    instance.ok("down")
    instance.ok("ledger", "restore", "--keep-tokens", saved)
    assert len(tokens(instance)) == 2


def tokens(instance: TestInstance) -> list[dict[str, str]]:
    """The tokens of all users; the server is started when none runs."""
    return list(instance.json("token", "list")["items"])
