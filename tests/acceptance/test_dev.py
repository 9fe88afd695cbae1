"""A place to work: entered, left, entered again, and ended when nobody uses it."""

import os
import re
import socket
import subprocess
import sys

import httpx

from tests.support.instance import REAL_GPUYARD, TestInstance, gpuyard
from tests.support.terminal import terminal
from tests.support.wait import wait_until

# Answers as JupyterLab does when it is asked with its token.
JUPYTER = f"""#!{sys.executable}
import http.server, os, sys
port = next(int(w.partition("=")[2]) for w in sys.argv if "ServerApp.port=" in w)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        known = self.path.endswith("token=" + os.environ["JUPYTER_TOKEN"])
        self.send_response(200 if known else 403)
        self.end_headers()
    def log_message(self, *_):
        pass
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def test_a_place_is_left_and_entered_again(shared_instance: TestInstance) -> None:
    ids: list[str] = []
    for _ in range(2):
        with terminal(
            [*REAL_GPUYARD, "dev"],
            cwd=shared_instance.work,
            env=shared_instance.environment,
        ) as shown:
            shown.expect(r"[#$] ")
            shown.type("echo it is $GPUYARD_JOB_ID in $PWD\n")
            ids.append(shown.expect(rf"it is job_\w+ in {shared_instance.work}\s"))
            shown.type("exit 3\n")
            shown.expect("dev goes on until it is not used for 30m")
            assert shown.leave() == 3
    assert ids[0] == ids[1]
    taken = shared_instance.run("dev", "--jupyter", input="")
    assert (taken.returncode, "dev is a place with a shell" in taken.stderr) == (
        4,
        True,
    )
    wrong = shared_instance.run("dev", "--idle", "soon", input="")
    assert (wrong.returncode, "--idle: is 'soon'" in wrong.stderr) == (2, True)
    shared_instance.ok("cancel", "dev")


def test_a_place_that_nobody_uses_warns_and_ends(shared_instance: TestInstance) -> None:
    job_id = shared_instance.ok("dev", "-d", "--idle", "5s", "--name", "brief").strip()
    shared_instance.wait(job_id, "completed")
    said = shared_instance.ok("logs", job_id)
    assert re.search(r"not used for \d s, ends in \d s\n", said)
    assert "ends after 5 s without use" in said


def test_jupyter_is_reached_with_its_token(shared_instance: TestInstance) -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    programs = shared_instance.work / "programs"
    programs.mkdir()
    (programs / "jupyter").write_text(JUPYTER)
    (programs / "jupyter").chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    words = ["dev", "--jupyter", "--name", "lab", "--port", str(taken.getsockname()[1])]
    showing = subprocess.Popen(
        [*gpuyard(), *words],
        cwd=shared_instance.work,
        env={**shared_instance.environment, "PATH": path},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert showing.stdout is not None
        url = showing.stdout.readline().strip()
        showing.stdout.readline()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/lab\?token=[\w-]{32}", url)
        assert wait_until(lambda: status_of(url)) == 200
        assert status_of(url[:-1]) == 403
        assert url.rpartition("=")[2] not in shared_instance.ok("logs", "lab")
    finally:
        shared_instance.ok("cancel", "lab")
        showing.communicate(timeout=60)
        taken.close()


def status_of(url: str) -> int:
    """What is answered there; 0 while nobody listens."""
    try:
        return httpx.get(url, timeout=60).status_code
    except httpx.TransportError:
        return 0
