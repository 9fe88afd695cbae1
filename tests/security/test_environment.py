"""A job that reads what /proc shows of the processes of its user."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.forkserver import REAL_PYTHON
from tests.support.instance import make_instance
from tests.support.unprivileged import search_from_a_job, unprivileged_instance, up
from tests.support.wait import wait_until

KEYS = {
    "AWS_SECRET_ACCESS_KEY": "planted-bucket-key",
    "SLURM_JWT": "planted-slurm-token",
    "GPUYARD_TOKEN": "planted-admin-token",
    "GPUYARD_HOOK": "planted-webhook-secret",
}
SETTINGS = (
    '[[notify.webhooks]]\nurl = "http://127.0.0.1:9/"\nsecret_env = "GPUYARD_HOOK"\n'
)


def test_a_job_finds_no_key_of_the_server_the_keeper_and_the_agent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GPUYARD_TOKEN", KEYS["GPUYARD_TOKEN"])
    with unprivileged_instance() as instance:
        instance.home.create()
        instance.home.settings.write_text(SETTINGS)
        up(instance, **KEYS)
        # The keeper gives the keys to the next agent, too.
        instance.wait(instance.submit(["true"]))
        first = instance.pid("agent")
        instance.kill("agent")
        wait_until(lambda: instance.pid("agent") not in (None, first), what="another")
        assert search_from_a_job(instance, list(KEYS.values())) == []


def test_a_server_that_is_started_with_keys_executes_itself_without_them() -> None:
    with make_instance(**KEYS, **{REAL_PYTHON: "1"}) as instance:
        command = [sys.executable, "-m", "gpuyard.server"]
        server = subprocess.Popen(command, env=instance.environment)
        wait_until(lambda: instance.pid("agent"), what="an agent")
        assert instance.pid("server") == server.pid
        for name in ("server", "keeper", "agent"):
            environment = Path(f"/proc/{instance.pid(name)}/environ").read_bytes()
            assert b"GPUYARD_HOME=" in environment
            assert b"planted" not in environment
        server.kill()
        server.wait()
