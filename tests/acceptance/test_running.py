"""Beside a job that runs: commands, ports."""

import asyncio
import hashlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator

import httpx
import psutil
import pytest

from gpuyard.client.aio import AsyncClient
from gpuyard.client.commands import CommandResult
from gpuyard.domain.errors import RefusedError
from tests.support.forkserver import REAL_AGENT
from tests.support.instance import (
    REAL_GPUYARD,
    TestInstance,
    gpuyard,
    make_instance,
)
from tests.support.node import gone
from tests.support.terminal import CTRL_C, CTRL_D, terminal

SLEEP = "import time; time.sleep(600)"
# Says where it listens.
SERVE = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"from " + self.path.encode())
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print("port", server.server_port, "end", flush=True)
server.serve_forever()
"""


@pytest.fixture
def job_id(shared_instance: TestInstance) -> Iterator[str]:
    """A job that runs until the test is over."""
    made = shared_instance.submit([sys.executable, "-I", "-S", "-c", SLEEP])
    shared_instance.wait(made, "running")
    yield made
    shared_instance.ok("cancel", made)


def test_a_command_reads_and_writes_bytes_and_gives_its_exit_code(
    shared_instance: TestInstance, job_id: str
) -> None:
    data = os.urandom(2_000_000)
    done = subprocess.run(
        [*gpuyard(), "exec", job_id, "--", "sh", "-c", "cat; echo no >&2; exit 3"],
        env=shared_instance.environment,
        input=data,
        capture_output=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (3, b"no\n")
    assert done.stdout == data
    missing = shared_instance.run("exec", job_id, "no-such-program", input="")
    assert missing.returncode == 127
    assert "no-such-program is in no folder of PATH" in missing.stderr
    lines = shared_instance.json("audit", "-n", "100")["items"]
    what = f"WEBSOCKET /api/v1/jobs/{job_id}/exec"
    noted = [(line["event"], line["outcome"]) for line in lines if line["what"] == what]
    assert noted == [("act", "101"), ("act", "101")]


def test_the_python_clients_run_commands_as_well(
    shared_instance: TestInstance, job_id: str
) -> None:
    command = ["sh", "-c", "cat; echo no >&2; exit 3"]

    async def awaited() -> CommandResult:
        async with AsyncClient(shared_instance.address()) as client:
            job = await client.job(job_id)
            return await job.exec(command, stdin=b"in\0")

    with shared_instance.client() as client:
        job = client.job(job_id)
        done = job.exec(command, stdin=b"in\0")
        assert done == CommandResult(3, b"in\0", b"no\n")
        with pytest.raises(RefusedError, match="no-such-program is in no folder"):
            job.exec(["no-such-program"])
    assert asyncio.run(awaited()) == done


def test_a_command_ends_with_the_client_that_is_killed(
    shared_instance: TestInstance, job_id: str
) -> None:
    running = subprocess.Popen(
        [*REAL_GPUYARD, "exec", job_id, "--", "sh", "-c", "echo $$; exec sleep 600"],
        env=shared_instance.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    assert running.stdout is not None
    pid = int(running.stdout.readline())
    assert psutil.pid_exists(pid)
    running.kill()
    running.communicate()
    gone(pid)
    assert shared_instance.job(job_id).state == "running"


def test_a_terminal_here_is_one_there(
    shared_instance: TestInstance, job_id: str
) -> None:
    script = (
        "tty; stty size; trap 'stty size' WINCH; trap 'echo caught' INT; echo ready;"
        " while read -r line || test -t 0; do echo got $line; done"
    )
    with terminal(
        [*REAL_GPUYARD, "exec", job_id, "--", "sh", "-c", script],
        env=shared_instance.environment,
    ) as shown:
        shown.expect(r"/dev/pts/\d+\s+40 160\s+ready")
        shown.resize(50, 90)
        shown.press_until("\n", r"50 90")
        shown.type(CTRL_C)
        shown.expect("caught")
        shown.type("exit\n")
        shown.expect("got exit")
        shown.process.send_signal(signal.SIGTERM)
        assert shown.leave() == 143


def test_a_dialogue_on_a_terminal_outlives_its_agent() -> None:
    with make_instance(**{REAL_AGENT: "1"}) as instance:
        instance.ok("up")
        hold_a_dialogue(instance)


def hold_a_dialogue(instance: TestInstance) -> None:
    command = ["-i", "--name", "dialogue", "--", sys.executable, "-i", "-q"]
    with terminal([*REAL_GPUYARD, "run", *command], env=instance.environment) as shown:
        shown.expect("what you type goes to")
        shown.type("print(6 * 7)\n")
        shown.expect(r"42\s+>>> ")
        shown.type(CTRL_C)
        shown.expect(r"\[d/c\]")
        shown.type("d\n")
        assert shown.leave() == 0
    agent = instance.pid("agent")
    assert agent
    os.kill(agent, signal.SIGKILL)
    with terminal(
        [*REAL_GPUYARD, "attach", "dialogue"], env=instance.environment
    ) as shown:
        shown.expect("what you type goes to")
        shown.type("print(7 * 8)\n")
        shown.expect(r"56\s+>>> ")
        shown.type(CTRL_D)
        shown.expect("completed")
        assert shown.leave() == 0


def test_piped_input_reaches_the_job_and_ends_with_the_pipe(
    shared_instance: TestInstance,
) -> None:
    data = os.urandom(1_000_000)
    done = subprocess.run(
        [*gpuyard(), "run", "-i", "--", "sha256sum"],
        env=shared_instance.environment,
        input=data,
        capture_output=True,
        timeout=60,
    )
    assert done.stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()
    job_id = shared_instance.submit(["cat"], interactive=True)
    watched = shared_instance.popen("attach", job_id, "--no-stdin")
    assert shared_instance.run("attach", job_id, input="one\n").stdout == "one\n"
    assert watched.communicate(timeout=60)[0] == "one\n"


def test_who_detaches_from_a_job_that_reads_little_hears_of_no_broken_connection(
    shared_instance: TestInstance,
) -> None:
    job_id = shared_instance.submit([sys.executable, "-c", SLEEP], interactive=True)
    shared_instance.wait(job_id, "running")
    attached = subprocess.Popen(
        [*gpuyard(), "attach", job_id],
        env=shared_instance.environment,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert attached.stdin
    # More than two pipes hold, and less than may be under way.
    attached.stdin.write(bytes(250_000))
    attached.send_signal(signal.SIGINT)
    _, said = attached.communicate(timeout=60)
    assert b"detached" in said
    assert b"broke" not in said
    shared_instance.ok("cancel", job_id)


def test_a_job_without_an_open_input_says_so_once(
    shared_instance: TestInstance, job_id: str
) -> None:
    with terminal(
        [*REAL_GPUYARD, "attach", job_id], env=shared_instance.environment
    ) as shown:
        shown.expect("running")
        shown.press_until("hello\n", "takes no input, because it was submitted")
        shown.type("again\n" + CTRL_C)
        shown.expect("detached")
        assert shown.leave() == 0
    assert shown.text.count("takes no input") == 1


def test_the_port_of_a_job_that_waits_is_forwarded_once_it_runs(
    shared_instance: TestInstance,
) -> None:
    words = ("run", "-d", "--hold", "--", sys.executable, "-I", "-S", "-c", SERVE)
    job_id = shared_instance.ok(*words).strip()
    forwarding = shared_instance.popen("forward", job_id, ":8888")
    assert forwarding.stdout is not None
    assert forwarding.stdout.readline().endswith("says for what\n")
    shared_instance.ok("release", job_id)
    assert "leads to port 8888 on" in forwarding.stdout.readline()
    shared_instance.ok("cancel", job_id)
    _, errors = forwarding.communicate(timeout=60)
    assert forwarding.returncode == 0, errors


def test_a_port_of_the_job_is_reached_until_the_job_is_over(
    shared_instance: TestInstance,
) -> None:
    job_id = shared_instance.submit([sys.executable, "-I", "-S", "-c", SERVE])
    shared_instance.wait(job_id, "running")
    with shared_instance.client() as client:
        said = next(iter(client.job(job_id).logs()))
    port = said.split()[1]
    forwarding = shared_instance.popen("forward", job_id, f":{port}")
    assert forwarding.stdout is not None
    found = re.fullmatch(
        rf"127\.0\.0\.1:(\d+) leads to port {port} on \S+\n",
        forwarding.stdout.readline(),
    )
    assert found
    here = found[1]
    with httpx.Client(base_url=f"http://127.0.0.1:{here}", timeout=60) as web:
        assert web.get("/once").text == "from /once"
        assert web.get("/again").text == "from /again"
    taken = shared_instance.run("forward", job_id, f"{here}:{port}")
    assert taken.returncode == 2
    assert f"PORT: {here} cannot be used here: Address already in use" in taken.stderr
    shared_instance.ok("cancel", job_id)
    _, errors = forwarding.communicate(timeout=60)
    assert forwarding.returncode == 0
    assert f"{job_id} cancelled" in errors
    over = shared_instance.run("forward", job_id, port)
    assert (over.returncode, "is over (cancelled)" in over.stderr) == (4, True)
    refused = shared_instance.run("exec", job_id, "--", "true", input="")
    assert (refused.returncode, "is over (cancelled)" in refused.stderr) == (125, True)
    # uvicorn takes the answer to it for a fault.
    assert "ASGI" not in (shared_instance.home.logs / "server.log").read_text()
