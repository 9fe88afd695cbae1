"""The server is killed at night: the queue goes on, and whoever follows misses
nothing.
"""

import json
import signal
from base64 import b64decode
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.instance import TestInstance, keeper_looks, make_instance
from tests.support.wait import wait_until
from tests.support.web import http


@pytest.fixture
def kept() -> Iterator[TestInstance]:
    """An instance whose keeper starts the server again, as everywhere outside tests.
    It has a key, by which keeper and server know that they belong together.
    """
    key = {"AWS_SECRET_ACCESS_KEY": "planted"}
    with make_instance(GPUYARD_SERVER__RESTART="true", **key) as instance:
        yield instance


def waiting_script(instance: TestInstance, name: str) -> str:
    """Prints one line, waits for the file `name`, and prints another."""
    return f"echo one; while [ ! -e {instance.work / name} ]; do sleep 0.05; done; echo two"


def test_the_queue_goes_on_though_nobody_types_a_command(kept: TestInstance) -> None:
    first = kept.submit(["sh", "-c", waiting_script(kept, "go")])
    last = kept.work / "last"
    kept.submit(["touch", str(last)], depends_on=[first])
    kept.wait(first, "running")
    for _ in range(2):
        killed = kept.pid("server")
        kept.kill("server")
        wait_until(lambda killed=killed: kept.pid("server") not in (None, killed))
    (kept.work / "go").touch()
    wait_until(last.exists, what="the waiting job to run")


def test_the_file_of_settings_is_remembered(kept: TestInstance) -> None:
    """By the keeper, which starts a killed server again, and by later commands."""

    def models() -> list[str]:
        return [model["name"] for model in kept.json("models")["items"]]

    settings = kept.work / "mine.json"
    mine = {"engine": "ollama", "memory_gb": 8}
    settings.write_text(json.dumps({"models": {"mine": mine}}))
    kept.ok("up", "--config", "mine.json")
    assert models() == ["mine"]
    kept.wait(kept.submit(["sleep", "300"]), "running")
    killed = kept.pid("server")
    kept.kill("server")
    wait_until(lambda: kept.pid("server") not in (None, killed))
    wait_until(lambda: kept.run("jobs").returncode == 0)
    assert models() == ["mine"]
    kept.ok("down", "--running", "cancel")
    assert models() == ["mine"]
    kept.ok("down")
    kept.ok("up", "--config", "default")
    assert models() == []
    refused = kept.run("up", "--config", "mine.json")
    assert "runs, with the settings it has" in refused.stderr


def test_a_server_that_was_stopped_stays_stopped(kept: TestInstance) -> None:
    kept.wait(kept.submit(["sleep", "300"]), "running")
    kept.ok("down", "--running", "leave")
    keeper_looks(kept, 2)
    assert kept.pid("server") is None
    assert kept.pid("keeper"), "it keeps the job"


def test_a_server_in_the_foreground_is_left_to_its_service_manager(
    kept: TestInstance,
) -> None:
    serving = kept.popen("up", "--foreground")
    kept.wait(_submitted(kept), "running")
    serving.send_signal(signal.SIGKILL)
    serving.wait(30)
    keeper_looks(kept, 2)
    assert kept.pid("server") is None


def test_a_server_with_other_keys_than_its_keeper_is_left_to_a_command(
    kept: TestInstance,
) -> None:
    job_id = kept.submit(["sleep", "300"])
    kept.wait(job_id, "running")
    kept.ok("down", "--running", "leave")
    kept.environment["AWS_SECRET_ACCESS_KEY"] = "new"
    kept.ok("up")
    kept.kill("server")
    keeper_looks(kept, 2)
    assert kept.pid("server") is None
    assert "other keys" in (kept.home.node / "keeper.log").read_text()
    assert kept.wait(job_id, "running").state == "running"


def _submitted(instance: TestInstance) -> str:
    wait_until(instance.home.server.exists, what="the server to serve")
    return instance.submit(["sleep", "300"])


def test_run_follows_its_job_through_a_restart_and_leaves_with_its_code(
    kept: TestInstance,
) -> None:
    script = waiting_script(kept, "go") + "; exit 7"
    following = kept.popen("run", "--", "sh", "-c", script)
    assert following.stdout
    assert following.stdout.readline() == "one\n"
    kept.kill("server")
    (kept.work / "go").touch()
    rest, said = following.communicate(timeout=60)
    assert (rest, following.returncode) == ("two\n", 7), said


def test_last_lines_and_events_go_on_after_a_restart(kept: TestInstance) -> None:
    job_id = kept.submit(["sh", "-c", "echo zero; " + waiting_script(kept, "go")])
    wait_until(lambda: "one" in kept.ok("logs", job_id))
    lines = kept.popen("logs", "-f", "-n", "1", job_id)
    events = kept.popen("events", "-f", "--after", "0", "--json")
    assert lines.stdout and events.stdout
    assert lines.stdout.readline() == "one\n"
    seen = [json.loads(events.stdout.readline())]
    kept.kill("server")
    (kept.work / "go").touch()
    rest, said = lines.communicate(timeout=60)
    assert (rest, lines.returncode) == ("two\n", 0), said
    while seen[-1]["kind"] != "job.completed":
        seen.append(json.loads(events.stdout.readline()))
    events.send_signal(signal.SIGINT)
    events.communicate(timeout=60)
    numbers = [event["seq"] for event in seen if event["seq"]]
    assert numbers == list(range(1, numbers[-1] + 1))


def test_a_follower_says_that_it_waits_and_that_the_server_is_back(
    instance: TestInstance,
) -> None:
    script = waiting_script(instance, "go")
    following = instance.popen("run", "--", "sh", "-c", script)
    assert following.stdout and following.stderr
    assert following.stdout.readline() == "one\n"
    instance.ok("down", "--running", "leave")
    assert "Waiting for it." in following.stderr.readline()
    instance.ok("up")
    assert following.stderr.readline() == "gpuyard: The server is back.\n"
    (instance.work / "go").touch()
    rest, _ = following.communicate(timeout=60)
    assert (rest, following.returncode) == ("two\n", 0)


def test_output_can_be_read_from_any_place_on(shared_instance: TestInstance) -> None:
    counted = shared_instance.work / "counted"
    script = f"echo x >> {counted}; echo run $(wc -l < {counted}); [ $(wc -l < {counted}) = 2 ]"
    job_id = shared_instance.submit(["sh", "-c", script], retry_count=1)
    shared_instance.wait(job_id)

    def read(**query: Any) -> list[dict[str, Any]]:
        answer = web.get(
            f"/api/v1/jobs/{job_id}/logs",
            params=query,
            headers={"Accept": "application/x-ndjson"},
        )
        assert answer.status_code == 200, answer.text
        return [json.loads(line) for line in answer.text.splitlines()]

    with http(shared_instance) as web:
        _, *parts, end = read(position="1:4", follow=True)
        found = [(p["attempt"], p["offset"], b64decode(p["data"])) for p in parts]
        assert found == [(1, 4, b"1\n"), (2, 0, b"run 2\n")]
        assert end == {"end": True}
        (_, part, _) = read(lines=1)
        assert (part["attempt"], part["offset"]) == (2, 0)
        refused = web.get(f"/api/v1/jobs/{job_id}/logs", params={"position": "x"})
        assert (refused.status_code, "position" in refused.text) == (422, True)
        absent = web.get(f"/api/v1/jobs/{job_id}/logs", params={"position": "3:0"})
        assert (absent.status_code, "no attempt 3" in absent.text) == (404, True)
