"""`gpuyard doctor` finds what keeps a server from starting, and versions that differ."""

import json
import os
import signal
from typing import Any

import pytest

from tests.support.instance import TestInstance
from tests.support.wait import wait_until


def findings(instance: TestInstance) -> dict[str, Any]:
    """What it says, by what it looked at."""
    done = instance.run("doctor", "--json")
    assert done.returncode in (0, 1), done.stderr
    return {item["what"]: item for item in json.loads(done.stdout)["items"]}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("[providers.nosuch]\n", "nosuch"),
        ('[server]\nhost = "0.0.0.0"\n', "server.host"),
        ('[node]\nrun_as = "no-such-account"\n', "node.run_as"),
        ('[storage]\nurl = "ftp://x/y"\n', "storage"),
        ('[[notify.webhooks]]\nurl = "http://127.0.0.1:9/"\nkind = "x"\n', "notify"),
    ],
    ids=["provider", "host", "account", "store", "webhook"],
)
def test_what_keeps_the_server_from_starting_is_found_without_starting_it(
    instance: TestInstance, settings: str, words: str
) -> None:
    instance.home.create()
    instance.home.settings.write_text(settings)
    found = findings(instance)["settings"]
    refused = instance.run("up")
    assert refused.returncode != 0
    assert (found["ok"], words in found["found"]) == (False, True), found
    assert str(instance.home.settings) in found["remedy"]
    assert words in refused.stderr


def test_an_agent_of_another_version_is_found(instance: TestInstance) -> None:
    instance.ok("up")
    wait_until(lambda: findings(instance)["agent"]["found"] == "healthy")
    instance.home.agent_version.write_text("0.0.1")
    found = findings(instance)["agent"]
    assert not found["ok"] and "has version 0.0.1" in found["found"]
    assert "gpuyard up" in found["remedy"]


def test_fewer_gpus_than_the_settings_expect_are_found(instance: TestInstance) -> None:
    instance.home.create()
    instance.home.settings.write_text("[resource_manager]\ngpu_count = 2000\n")
    found = findings(instance)["GPUs"]
    assert not found["ok"] and "gpu_count says 2000, and" in found["remedy"]
    # The GPUs that a server knows count.
    instance.home.settings.write_text("[resource_manager]\ngpu_count = 2\n")
    instance.ok("up", "--simulate-gpus", "2x24")
    wait_until(lambda: len(instance.json("gpus")["items"]) == 2, what="the GPUs")
    found = findings(instance)["GPUs"]
    assert "gpu_count" not in found["remedy"]
    assert "the server has 2 × Simulated GPU" in found["found"]


def test_a_server_that_was_stopped_is_found_at_once(instance: TestInstance) -> None:
    instance.ok("up")
    process = int(instance.home.lock.read_text())
    os.kill(process, signal.SIGSTOP)
    try:
        found = findings(instance)["server"]
    finally:
        os.kill(process, signal.SIGCONT)
    assert not found["ok"] and f"(process {process}) is stopped" in found["found"]
    assert found["remedy"] == f"kill -CONT {process}"
