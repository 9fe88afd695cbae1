"""What a job serves runs beside our page, and can do nothing there."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.board import LOGS, with_board
from tests.support.instance import TestInstance, make_instance
from tests.support.ports import free_port
from tests.support.wait import wait_until
from tests.support.web import check_problem, http

PROGRAM = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"at {self.path} for {self.headers['Cookie']}".encode())
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


@dataclass(frozen=True)
class Served:
    """A job that serves at `port`, and the server's port for tools."""

    instance: TestInstance
    job: str
    port: int
    door: int

    def links(self) -> str:
        """Where links to it are made."""
        return f"/api/v1/jobs/{self.job}/forward/{self.port}/links"

    def ask(self, url: str, **headers: str) -> httpx.Response:
        """The answer at an address, whose host name nobody needs to look up."""
        parts = urlsplit(url)
        here = f"http://127.0.0.1:{self.door}{parts.path}?{parts.query}"
        return httpx.get(here, headers={"Host": parts.netloc, **headers}, timeout=60)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    door = free_port()
    with make_instance(GPUYARD_SERVER__TOOLS_LISTEN=f"127.0.0.1:{door}") as instance:
        job = instance.submit(["python3", "-c", PROGRAM])
        said = wait_until(
            lambda: instance.run("logs", job).stdout, what="the job to listen"
        )
        yield Served(instance, job, int(said), door)


def test_a_link_opens_what_a_job_serves(served: Served) -> None:
    words = ("forward", served.job, str(served.port), "--link")
    (url,) = served.instance.json(*words)["urls"]
    signed_in = served.ask(url)
    assert signed_in.status_code == 303, signed_in.text
    cookie = signed_in.headers["set-cookie"].partition(";")[0]
    page = served.ask(url.partition("/.gpuyard")[0] + "/a", Cookie=f"{cookie}; b=1")
    assert page.text == "at /a? for b=1"


def test_a_page_of_a_job_acts_for_nobody_at_our_own_address(served: Served) -> None:
    """It could only use the browser's session there; its requests say where they come
    from.
    """
    address = served.instance.address()
    with http(served.instance) as web:
        url = web.post(served.links()).raise_for_status().json()["url"]
        code = web.post("/api/v1/sign-in/links").json()["url"].rpartition("=")[2]
    origin = url.partition("/.gpuyard")[0]
    own = {"Origin": address.url}
    with httpx.Client(base_url=address.url, timeout=60) as browser:
        signed_in = browser.post("/auth/token", data={"code": code}, headers=own)
        assert signed_in.cookies, signed_in.text
        # The session is good: our own page may do all of it.
        assert browser.post(served.links(), headers=own).status_code == 201
        place = browser.get(f"/api/v1/jobs/{served.job}/exec", headers=own)
        assert place.json()["node"], place.text
        foreign = {"Origin": origin, "Sec-Fetch-Site": "same-site"}
        job = f"/api/v1/jobs/{served.job}"
        for path in (f"{job}/cancel", served.links()):
            check_problem(browser.post(path, headers=foreign), 403, "forbidden")
        for path in (f"{job}/exec", f"{job}/forward/{served.port}"):
            refused = browser.get(path, headers={**UPGRADE, **foreign})
            assert refused.status_code == 403, refused.text
        # What it gets, browsers show to no other origin.
        looks = [
            browser.get("/api/v1/jobs", headers=foreign),
            browser.options("/api/v1/jobs", headers=foreign),
        ]
        for answer in looks:
            allowed = [name for name in answer.headers if name.startswith("access-")]
            assert not allowed, answer.headers
            assert answer.headers["cross-origin-resource-policy"] == "same-origin"


def test_nobody_else_gets_a_link(served: Served) -> None:
    with served.instance.client() as client:
        client.add_user("ann")
        token = client.issue_token(user="ann").token
    with http(served.instance, headers={"Authorization": f"Bearer {token}"}) as web:
        check_problem(web.post(served.links()), 403, "forbidden")


@pytest.mark.parametrize("role", ["member", "viewer"])
def test_nobody_else_opens_a_shell_in_a_job(served: Served, role: str) -> None:
    with served.instance.client() as client:
        client.add_user(f"other-{role}", role=role)
        token = client.issue_token(user=f"other-{role}").token
    job = f"/api/v1/jobs/{served.job}"
    with http(served.instance, headers={"Authorization": f"Bearer {token}"}) as web:
        for path in (f"{job}/exec", f"{job}/stdin"):
            check_problem(web.get(path), 403, "forbidden")
            refused = web.get(path, headers=UPGRADE)
            assert refused.status_code == 403, refused.text


def test_tensorboard_starts_for_whoever_may_see_the_jobs(
    served: Served, tmp_path: Path
) -> None:
    instance = served.instance
    own = with_board(tmp_path)
    with instance.client() as client:
        client.add_project("hidden", private=True)
        client.add_user("bea")
        token = client.issue_token(user="bea").token
    names = {"first": {"project": "hidden"}, "second": {}}
    jobs = [
        instance.submit(["python3", "-c", LOGS], name=name, environment=own, **more)
        for name, more in names.items()
    ]
    for job in jobs:
        assert instance.wait(job).state == "completed"
    url = instance.json("tensorboard", *jobs, "--link")["url"]
    cookie = served.ask(url).headers["set-cookie"].partition(";")[0]
    origin = url.partition("/.gpuyard")[0]
    page = served.ask(origin + "/", Cookie=cookie)
    runs = re.findall(r'href="([^"]+)/"', page.text)
    assert runs == [f"{name}-{job[-6:]}" for name, job in zip(names, jobs, strict=True)]
    # It is there for the next look.
    again = instance.json("tensorboard", *reversed(jobs), "--link")["url"]
    assert again.partition("/.gpuyard")[0] == origin
    # It has a core, and the next one needs one, too.
    instance.ok("cancel", "tensorboard")
    path = "/api/v1/tensorboards"
    with http(instance) as web:
        problem = check_problem(
            web.post(path, json={"jobs": [served.job]}), 409, "refused"
        )
        assert "has no tensorboard: pip install tensorboard" in problem["detail"]
    with http(instance, headers={"Authorization": f"Bearer {token}"}) as web:
        check_problem(web.post(path, json={"jobs": jobs}), 404, "not_found")
        check_problem(web.post(path, json={"jobs": jobs[1:]}), 409, "refused")
        # What is on the PATH of others does not run as theirs.
        spec = web.get("/api/v1/jobs/tensorboard").json()["spec"]
    assert (spec["user"], spec.get("environment", {})) == ("bea", {})
