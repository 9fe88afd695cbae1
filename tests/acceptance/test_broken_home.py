"""A home, a disk, a port or settings that are no good: one clear error, and an instance
that works once they are mended.
"""

import re
import socket
import sqlite3
from contextlib import closing

import pytest

from gpuyard.ledger.migrate import HEAD
from tests.support.instance import TestInstance
from tests.support.refusal import obey_modes, refused
from tests.support.tmpfs import fill, small_disk
from tests.support.wait import wait_until
from tests.support.web import check_problem, http, job_count, spec

SECRET = "hunter2-in-the-environment"
FILE = "{home}/gpuyard.toml"


@pytest.mark.parametrize(
    ("text", "environment", "said"),
    [
        ("[server\n", {}, [FILE, "is not valid TOML", "line 1", "correct the file"]),
        (
            "[server]\nprot = 1\n",
            {},
            [f"{FILE}: server.prot: is not a field", "did you mean port"],
        ),
        (
            "[nodes]\nmax_log_gb = 1\n",
            {},
            [f"{FILE}: nodes: is not a field", "did you mean node"],
        ),
        (
            "[node]\nprogress_s = '5 parsecs'\n",
            {},
            [f"{FILE}: node.progress_s", "'5 parsecs' is not a duration"],
        ),
        (
            "",
            {"GPUYARD_SERVER__PORT": "http"},
            ["GPUYARD_SERVER__PORT: is 'http'", "integer"],
        ),
        (
            "",
            {"GPUYARD_SERVER__PORT": "70000"},
            ["GPUYARD_SERVER__PORT: is '70000'", "at most 65535"],
        ),
        ("", {"GPUYARD_TIERS": "big"}, ["GPUYARD_TIERS: is not JSON"]),
        (
            "",
            {"GPUYARD_CONFIG": "/nowhere.toml"},
            ["GPUYARD_CONFIG", "/nowhere.toml", "no file"],
        ),
        (
            "",
            {"GPUYARD_SERVER__HOST": "0.0.0.0"},
            ["server.host: is '0.0.0.0'", "use 127.0.0.1"],
        ),
    ],
)
def test_a_wrong_setting_is_named_with_its_file_or_variable(
    instance: TestInstance, text: str, environment: dict[str, str], said: list[str]
) -> None:
    instance.home.create()
    if text:
        (instance.home.root / "gpuyard.toml").write_text(text)
    background = refused(instance, "jobs", code=5, env=environment)
    foreground = refused(instance, "up", "--foreground", code=2, env=environment)
    for words in said:
        assert words.format(home=instance.home.root) in background
        assert words.format(home=instance.home.root) in foreground
    assert not instance.home.ledger.exists()


def test_a_port_in_use_is_named(instance: TestInstance) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for words, code in (
            (["up", "--port", str(port)], 5),
            (["up", "--foreground", "--port", str(port)], 2),
        ):
            told = refused(instance, *words, code=code)
            assert (
                f"server.port: {port} cannot be used: Address already in use (choose"
                " another" in told
            )
    assert not instance.home.ledger.exists()
    assert f":{port}" in instance.ok("up", "--port", str(port))


def test_a_ledger_of_a_newer_version_is_left_as_it_is(instance: TestInstance) -> None:
    instance.wait(instance.submit(["true"]))
    instance.ok("down")
    with closing(sqlite3.connect(instance.home.ledger)) as ledger, ledger:
        ledger.execute("UPDATE alembic_version SET version_num = '9999'")
    before = instance.home.ledger.read_bytes()
    for words, code in ((["jobs"], 5), (["up", "--foreground"], 4)):
        told = refused(instance, *words, code=code)
        assert f"from a newer gpuyard (schema 9999; this one knows {HEAD})" in told
        assert "Upgrade gpuyard" in told
    assert instance.home.ledger.read_bytes() == before


def test_a_home_that_cannot_be_written_is_named(instance: TestInstance) -> None:
    instance.home.root.mkdir(mode=0o500)
    told = refused(instance, "jobs", code=5, preexec_fn=obey_modes)
    assert (
        str(instance.home.root) in told
        and "Permission denied" in told
        and "Set GPUYARD_HOME" in told
    )
    instance.home.root.rmdir()
    instance.home.root.write_text("a file")
    assert "Set GPUYARD_HOME" in refused(instance, "jobs", code=5)
    instance.home.root.unlink()


@pytest.mark.parametrize(
    ("url", "code", "said"),
    [
        ("http://127.0.0.1:1", 5, "does not answer"),
        ("127.0.0.1:8400", 2, "GPUYARD_URL: is '127.0.0.1:8400'"),
        ("http://[::1", 2, "GPUYARD_URL"),
    ],
)
def test_a_server_that_is_not_there_is_named(
    instance: TestInstance, url: str, code: int, said: str
) -> None:
    assert said in refused(instance, "jobs", code=code, env={"GPUYARD_URL": url})
    assert not instance.home.root.exists()


def test_a_proxy_for_other_machines_is_not_asked_about_this_one(
    shared_instance: TestInstance,
) -> None:
    shared_instance.ok(
        "jobs",
        env={"HTTP_PROXY": "http://127.0.0.1:1", "ALL_PROXY": "http://127.0.0.1:1"},
    )


def test_on_a_full_disk_nothing_is_half_done_and_with_room_again_all_goes_on(
    instance: TestInstance,
) -> None:
    with small_disk(instance.home.root, "16m"):
        instance.ok("up")
        with http(instance) as web:
            body = spec(instance, environment={"TOKEN": SECRET})
            instance.wait(web.post("/api/v1/jobs", json=body).json()["id"])
            running = web.post(
                "/api/v1/jobs",
                json=spec(instance, "sh", "-c", "until [ -e go ]; do sleep 0.1; done"),
            ).json()["id"]
            instance.wait(running, "running")
            before = job_count(web)
            ballast = instance.home.root / "ballast"
            # The log that SQLite keeps beside the ledger may have room of its own for a
            # few more.
            fill(ballast)
            answers = [
                web.post("/api/v1/jobs", json={**body, "args": {"x": "y" * 400_000}})
                for _ in range(15)
            ]
            problem = check_problem(answers[-1], 507, "disk_full")
            assert (
                "disk is full" in problem["detail"]
                and "Free some space" in problem["detail"]
            )
            told = refused(
                instance, "run", "-d", "--env", f"TOKEN={SECRET}", "--", "true", code=4
            )
            assert "disk is full" in told
            taken = sum(answer.status_code == 201 for answer in answers)
            assert job_count(web) == before + taken
            assert instance.job(running).state == "running"
            ballast.unlink()
            after = wait_until(
                lambda: (
                    (a := web.post("/api/v1/jobs", json=body)).status_code == 201 and a
                ),
                what="room",
            )
            assert instance.wait(after.json()["id"]).state == "completed"
            assert job_count(web) == before + taken + 1
            (instance.work / "go").touch()
            assert instance.wait(running).state == "completed"
            assert len(instance.job(running).attempts) == 1
        assert SECRET not in "".join(
            path.read_text() for path in instance.home.logs.iterdir()
        )
        instance.ok("down", "--running", "cancel")


def test_a_home_on_a_full_disk_works_once_there_is_room(instance: TestInstance) -> None:
    with small_disk(instance.home.root, "4m"):
        instance.home.create()
        fill(instance.home.root / "ballast")
        assert re.search(
            "disk.* is full|No space left", refused(instance, "jobs", code=5)
        )
        (instance.home.root / "ballast").unlink()
        assert instance.ok("run", "--", "echo", "room").strip() == "room"
        instance.ok("down")
