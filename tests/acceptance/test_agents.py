"""Agents of other homes come in by the server's WebSocket."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import gpuyard
from gpuyard.config.paths import Home
from tests.support.wait import wait_until


@contextmanager
def node_of(instance, url, token):
    """A keeper and its agent under a home without a server; it knows of the one at
    `url`.
    """
    root = Path(tempfile.mkdtemp(prefix="gy-", dir="/tmp"))
    home = Home(root)
    home.create()
    home.peers.write_text(
        json.dumps({"urls": ["http://127.0.0.1:9", url], "token": token})
    )
    keeper = Path(gpuyard.__file__).parent / "node" / "keeper.py"
    agent = [sys.executable, "-m", "gpuyard.node.agent", "--home", str(root)]
    with subprocess.Popen(
        [sys.executable, "-I", keeper, "--dir", home.node, "--", *agent],
        env=instance.environment,
    ) as process:
        try:
            yield home
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
            shutil.rmtree(root)


def online(instance):
    return [
        node for node in instance.json("nodes")["items"] if node["state"] == "online"
    ]


def test_an_agent_of_another_home_joins_by_websocket_and_works_as_any(instance):
    with instance.client() as client:
        wait_until(lambda: client.nodes(), what="the home's own node")
        (own,) = client.nodes()
        with node_of(instance, client.address.url, client.address.token) as home:
            wait_until(lambda: len(client.nodes()) == 2, what="the other node")
            # Neither fits beside the other on one node.
            need = {"resources": {"cpus": own["cpus"]}, "workdir": str(instance.work)}
            code = (
                "import sys; sys.stdout.write('x' * 3_000_000 + 'end');"
                " sys.stdout.flush(); input()"
            )
            pipes = [instance.work / name for name in "ab"]
            for pipe in pipes:
                os.mkfifo(pipe)
            jobs = [
                client.run(
                    ["sh", "-c", f'exec "$0" -c "$1" < {pipe}', sys.executable, code],
                    **need,
                )
                for pipe in pipes
            ]
            shown = {
                instance.ok(
                    "exec", job.id, "--", "printenv", "GPUYARD_JOB_ID", input=""
                )
                for job in jobs
                if instance.wait(job.id, "running")
            }
            assert shown == {f"{job.id}\n" for job in jobs}
            for pipe in pipes:
                # Opens only when the job at its other end runs; its input ends at once.
                pipe.open("w").close()
            nodes = {instance.wait(job.id).node for job in jobs}
            assert len(nodes) == 2
            for job in jobs:
                assert b"".join(job.output()).count(b"x") >= 3_000_000
            assert list((home.node / "attempts").glob("*.log"))


def test_an_agent_without_the_token_is_left_outside(instance):
    with instance.client() as client:
        wait_until(lambda: client.nodes(), what="the home's own node")
        with node_of(instance, client.address.url, "guessed") as home:
            alive = home.node / "pulse"
            wait_until(alive.exists, what="the agent to be up")
            touched = alive.stat().st_mtime_ns
            wait_until(
                lambda: alive.stat().st_mtime_ns > touched,
                what="the agent to have dialled for a second",
            )
            assert len(client.nodes()) == 1
