"""Whoever reaches the server's port and has no token, or has it and sends too much."""

import json
import re
import socket
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser

from gpuyard.config import proof
from gpuyard.config.proof import digest_of, key_id
from gpuyard.server.guesses import AT_ONCE, FREE
from tests.support.attacker import USER, attacking
from tests.support.browser import browser
from tests.support.instance import TestInstance, make_instance
from tests.support.page import Page
from tests.support.wait import wait_until
from tests.support.web import check_problem, http

__all__ = ["browser"]

HEADERS = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
SLOW_S = 1.0
NEW_CONNECTIONS = 20
REQUESTS = 25


@pytest.fixture(scope="module")
def shared_instance() -> Iterator[TestInstance]:
    """An instance that is soon tired of waiting."""
    environment = {
        "GPUYARD_SERVER__SLOW_S": str(SLOW_S),
        "GPUYARD_SERVER__MAX_NEW_CONNECTIONS": str(NEW_CONNECTIONS),
        "GPUYARD_SERVER__MAX_REQUESTS": str(REQUESTS),
    }
    with make_instance(**environment) as made:
        made.ok("up")
        yield made


@pytest.fixture
def instance() -> Iterator[TestInstance]:
    """A fresh home."""
    with make_instance() as made:
        yield made


def port_of(instance: TestInstance) -> int:
    return int(instance.address().url.rpartition(":")[2])


def peak_kb(instance: TestInstance) -> int:
    """The most memory that the server ever had."""
    status = Path(f"/proc/{instance.pid('server')}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found
    return int(found[1])


def raw(instance: TestInstance, request: bytes) -> bytes:
    """All that the server answers to these bytes, until it ends the connection."""
    with socket.create_connection(("127.0.0.1", port_of(instance)), 30) as sock:
        sock.sendall(request)
        return b"".join(iter(lambda: sock.recv(65536), b""))


def push(instance: TestInstance, head: str, megabytes: int) -> bytes:
    """Send a head and a body, as much of it as the server takes; its answer."""
    with socket.create_connection(("127.0.0.1", port_of(instance)), 30) as sock:
        sock.sendall(head.encode())
        try:
            for _ in range(megabytes):
                sock.sendall(bytes(1_000_000))
            return sock.recv(65536)
        except OSError:
            return b""


# --- Bodies -------------------------------------------------------------------------


def test_bodies_without_a_token_take_no_memory(shared_instance: TestInstance) -> None:
    before_kb = peak_kb(shared_instance)
    heads = [
        f"PUT /api/v1/trust/x HTTP/1.1\r\nHost: localhost\r\n{length}\r\n\r\n"
        for length in ("Content-Length: 500000000", "Transfer-Encoding: chunked")
    ]
    heads[1] += "1dcd6500\r\n"  # one chunk of 500 MB
    with ThreadPoolExecutor() as pool:
        tries = [pool.submit(push, shared_instance, head, 500) for head in heads * 2]
        answers = [attempt.result() for attempt in tries]
    assert all(b"200 OK" not in answer for answer in answers)
    assert peak_kb(shared_instance) - before_kb < 32_000


@pytest.mark.parametrize("path", ["/api/v1/jobs", "/v1/chat/completions"])
def test_a_body_of_any_form_is_read_no_further_than_its_limit(
    shared_instance: TestInstance, path: str
) -> None:
    before_kb = peak_kb(shared_instance)
    with http(shared_instance) as web:
        told = web.post(path, content=bytes(65_000_000))
        streamed = web.post(path, content=(bytes(100_000) for _ in range(2000)))
    for answer in (told, streamed):
        body = answer.json()
        problem = body.get("error", body)  # OpenAI's form, under /v1
        assert (answer.status_code, problem["code"]) == (413, "too_large")
    assert streamed.headers["connection"] == "close"
    assert peak_kb(shared_instance) - before_kb < 200_000


def test_most_routes_take_small_bodies_only(shared_instance: TestInstance) -> None:
    with http(shared_instance) as web:
        finding = {"score": 1.0, "reason": "x" * 2_000_000}
        told = web.put("/api/v1/trust/x", json=finding)
        check_problem(told, 413, "too_large")
        parts = iter(json.dumps(finding).encode().split(b"x", 1))
        streamed = web.put(
            "/api/v1/trust/x", content=(part + bytes(1_000_000) for part in parts)
        )
        check_problem(streamed, 413, "too_large")


def test_a_client_has_so_many_requests_at_a_time(
    shared_instance: TestInstance,
) -> None:
    listening = {"Accept": "text/event-stream"}
    with http(shared_instance) as web:
        with ExitStack() as streams:
            for _ in range(REQUESTS):
                stream = web.stream("GET", "/api/v1/events", headers=listening)
                assert streams.enter_context(stream).status_code == 200
            refused = web.get("/api/v1/tiers")
            check_problem(refused, 429, "too_many_requests")
            assert int(refused.headers["retry-after"]) > 0
        wait_until(lambda: web.get("/api/v1/tiers").is_success, what="room again")


def test_a_link_without_the_token_is_refused(shared_instance: TestInstance) -> None:
    answer = raw(
        shared_instance,
        b"GET /api/v1/agent HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
        b"Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        b"Sec-WebSocket-Version: 13\r\nAuthorization: Bearer wrong\r\n\r\n",
    )
    assert answer.startswith(b"HTTP/1.1 403 ")


def test_a_stranger_writes_nothing_to_the_log(shared_instance: TestInstance) -> None:
    file = shared_instance.home.logs / "server.log"
    before = file.read_text()
    get = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nUpgrade: h2c\r\n"
    assert b" 400 " in raw(shared_instance, b"NO HTTP AT ALL\r\n\r\n")
    assert b" 200 " in raw(shared_instance, get + b"Connection: Upgrade, close\r\n\r\n")
    assert file.read_text() == before


def test_who_leaves_amid_a_body_writes_no_traceback(
    shared_instance: TestInstance,
) -> None:
    token = shared_instance.address().token
    head = (
        " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
        f"Authorization: Bearer {token}\r\n\r\n{{"
    )
    last = "PUT /api/v1/trust/left"
    audit = shared_instance.home.audit_log
    where = ("127.0.0.1", port_of(shared_instance))
    for what in ("POST /api/v1/jobs", "POST /v1/chat/completions", last):
        with socket.create_connection(where, 30) as sock:
            sock.sendall((what + head).encode())
    wait_until(lambda: audit.exists() and last in audit.read_text())
    assert "Traceback" not in (shared_instance.home.logs / "server.log").read_text()


# --- Bad input ----------------------------------------------------------------------


def test_what_is_nested_too_deeply_or_too_large_is_refused(
    shared_instance: TestInstance,
) -> None:
    with http(shared_instance) as web:
        web.post("/api/v1/jobs", json={"command": ["true"], "name": "numbers"})
        for query in (
            "lines=" + "9" * 23,
            "attempt=" + "9" * 23,
            "lines=" + "9" * 5000,
        ):
            answer = web.get(f"/api/v1/jobs/numbers/logs?{query}")
            check_problem(answer, 422, "invalid_input")
        assert web.get(f"/api/v1/jobs/numbers/logs?lines={2**31 - 1}").is_success
        for path in ("chat/completions", "completions", "embeddings"):
            for body in (b"[" * 200_000, b'{"a":' * 200_000):
                answer = web.post(f"/v1/{path}", content=body)
                assert answer.status_code == 400
                assert answer.json()["error"]["code"] == "invalid_body"


# --- Slow senders -------------------------------------------------------------------


def test_slow_heads_end_and_keep_nobody_out(shared_instance: TestInstance) -> None:
    where = ("127.0.0.1", port_of(shared_instance))
    sockets = [socket.create_connection(where, 30) for _ in range(5 * NEW_CONNECTIONS)]
    for sock in sockets[::2]:
        sock.sendall(b"GET /healthz HTTP/1.1\r\nX-Slow: ")
    with http(shared_instance) as web:
        assert web.get("/api/v1/server").status_code == 200
    assert (
        httpx.get(f"{shared_instance.address().url}/healthz", timeout=60).status_code
        == 200
    )
    for sock in sockets:
        with sock, suppress(ConnectionResetError):
            assert sock.recv(1) == b""


def test_a_slow_body_ends(shared_instance: TestInstance) -> None:
    token = shared_instance.address().token
    head = (
        "POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n"
        f"Authorization: Bearer {token}\r\n\r\n{{"
    )
    answer = raw(shared_instance, head.encode())
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"code":"too_slow"' in answer


def test_endless_headers_end(shared_instance: TestInstance) -> None:
    head = b"GET /healthz HTTP/1.1\r\n" + b"X-Many: more\r\n" * 5000
    assert raw(shared_instance, head).startswith(b"HTTP/1.1 413 ")


# --- Tokens -------------------------------------------------------------------------

GUESS = """
import collections, http.client, json, sys, time
from concurrent.futures import ThreadPoolExecutor
port, token = int(sys.argv[1]), sys.argv[2]

def ask(token):
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    link.request("GET", "/api/v1/tiers", headers={"Authorization": "Bearer " + token})
    answer = link.getresponse()
    wait = answer.getheader("Retry-After")
    link.close()
    return answer.status, wait

began = time.monotonic()
with ThreadPoolExecutor(30) as pool:
    answers = list(pool.map(ask, ["guess-%d" % number for number in range(90)]))
took = time.monotonic() - began
while (last := ask(token)[0]) == 429:
    time.sleep(0.1)
print(json.dumps({"answers": answers, "took": took, "last": last}))
"""


def test_guesses_are_slow_and_lock_nobody_out(shared_instance: TestInstance) -> None:
    token = shared_instance.address().token
    with attacking(GUESS, str(port_of(shared_instance)), token) as attacker:
        honest: list[int] = []
        while attacker.poll() is None:
            with http(shared_instance) as web:
                honest.append(web.get("/api/v1/tiers").status_code)
        assert attacker.stdout
        found = json.loads(attacker.stdout.read())
    statuses = [status for status, _ in found["answers"]]
    looked_at = statuses.count(401)
    assert FREE <= looked_at <= FREE + AT_ONCE * (found["took"] + 2)
    refused = [wait for status, wait in found["answers"] if status == 429]
    assert len(refused) + looked_at == len(statuses)
    assert refused and all(int(wait) > 0 for wait in refused)
    assert set(honest) == {200}
    # With the right token even its own user gets in again.
    assert found["last"] == 200


PROVE = """
import collections, http.client, json, sys
from concurrent.futures import ThreadPoolExecutor
port, path, right, token = int(sys.argv[1]), *sys.argv[2:]

def connected(_):
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    link.request("GET", "/api/v1/tiers", headers={"Authorization": "Bearer " + token})
    link.getresponse().read()
    return link

def ask(link, key):
    link.request("GET", "%s?nonce=%s&key=%s" % (path, "0" * 64, key))
    answer = link.getresponse()
    answer.read()
    return answer.status

with ThreadPoolExecutor(30) as pool:
    links = list(pool.map(connected, range(30)))
    guesses = ["x%d" % number for number in range(30)]
    found = sum(
        (collections.Counter(pool.map(ask, links, guesses)) for _ in range(3)),
        collections.Counter(),
    )
while (last := ask(links[0], right)) == 429:
    pass
print(json.dumps({"wrong": found, "right": last}))
"""


def test_guessing_by_proofs_is_as_slow(instance: TestInstance) -> None:
    instance.ok("up")
    token = instance.address().token
    instance.ok("user", "add", "eve", "--role", "viewer")
    # Of a viewer, whose own token is right.
    eves = instance.json("token", "new", "--user", "eve")["token"]
    words = (str(port_of(instance)), proof.PATH, key_id(digest_of(token)), eves)
    with attacking(PROVE, *words) as attacker:
        found = json.loads(attacker.communicate()[0])
    assert found["wrong"].keys() == {"404", "429"}
    assert found["wrong"]["404"] >= FREE
    assert found["right"] == 200
    lines = instance.json("audit", "-n", "100")["items"]
    what = f"GET {proof.PATH}"
    refused = {line["outcome"] for line in lines if line["what"] == what}
    assert {"not_found", "too_many_requests"} <= refused


def test_a_header_does_not_make_another_client(shared_instance: TestInstance) -> None:
    with http(shared_instance) as web:
        web.delete("/api/v1/trust/nowhere", headers={"X-Forwarded-For": "192.0.2.7"})
    lines = shared_instance.json("audit")["items"]
    assert [line["from"] for line in lines if "nowhere" in line["what"]] == [
        "127.0.0.1"
    ]


# --- Browsers -----------------------------------------------------------------------


def test_another_name_is_refused(shared_instance: TestInstance) -> None:
    with http(shared_instance) as web:
        for path in ("/healthz", "/docs", "/openapi.json", "/api/v1/jobs"):
            for name in ("evil.example", f"127.0.0.1.evil.example:{web.base_url.port}"):
                answer = web.get(path, headers={"Host": name})
                check_problem(answer, 421, "wrong_host")
            assert web.get(path, headers={"Host": "localhost:1"}).status_code == 200


def test_every_answer_has_the_headers(shared_instance: TestInstance) -> None:
    with http(shared_instance) as web:
        answers = [
            web.get("/healthz"),
            web.get("/docs"),
            web.get("/api/v1/jobs"),
            web.get("/v1/models"),
            web.get("/metrics"),
            web.get("/nowhere"),
            web.put("/api/v1/jobs"),
            web.get("/healthz", headers={"Host": "evil.example"}),
            web.get("/api/v1/jobs", headers={"Authorization": ""}),
        ]
    for answer in answers:
        found = {name: answer.headers.get_list(name) for name in HEADERS}
        assert found == {name: [value] for name, value in HEADERS.items()}, answer.url
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none';"), answer.url
        assert "frame-ancestors 'none'" in policy, answer.url
        assert "script" not in policy, answer.url
    garbage = raw(shared_instance, b"NO HTTP AT ALL\r\n\r\n").decode()
    assert all(f"{name}: {value}" in garbage for name, value in HEADERS.items())


def test_the_page_of_calls_needs_nothing_else(
    shared_instance: TestInstance, browser: Browser
) -> None:
    url = shared_instance.address().url
    asked: list[str] = []
    complaints: list[str] = []
    page = browser.new_page()
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.goto(f"{url}/docs")
    width = page.eval_on_selector("body", "body => getComputedStyle(body).maxWidth")
    read = Page(page.content())
    assert (asked, complaints) == ([f"{url}/docs"], [])
    assert width.endswith("px"), "the browser refuses the page's own style"
    document = httpx.get(f"{url}/openapi.json", timeout=60).json()
    assert all(path in read.text for path in document["paths"])
    assert all(name in read.text for name in document["components"]["schemas"])
    assert "script" not in read.count


# --- The audit log ------------------------------------------------------------------


def test_who_was_refused_and_who_changed_what_is_kept(instance: TestInstance) -> None:
    instance.ok("up")
    token = instance.address().token
    with http(instance) as web:
        for number in range(50):
            web.get(f"/api/v1/jobs/{number}")
        web.post("/api/v1/jobs", json={"command": ["true"], "name": "one"})
        web.put("/api/v1/trust/local", json={"score": 0.5})
        web.post("/api/v1/jobs/one/cancel")
        web.post("/api/v1/models/nothing/pin")
        web.post(f"/api/v1/gpus/{token}/drain")
        web.put("/api/v1/trust/x", json={"reason": "x" * 2_000_000})
    for path in ("/docs", "/healthz", proof.PATH):
        assert (
            httpx.post(f"{instance.address().url}{path}", timeout=60).status_code == 405
        )
    with http(instance, headers={"Authorization": "Bearer wrong"}) as web:
        web.post("/api/v1/server/stop")
    program = (
        "import sys, urllib.request, urllib.error\n"
        "try: urllib.request.urlopen(sys.argv[1])\n"
        "except urllib.error.HTTPError as error: print(error.code)"
    )
    with attacking(program, f"{instance.address().url}/api/v1/jobs") as attacker:
        assert attacker.communicate()[0] == "401\n"
    lines = instance.json("audit", "-n", "100")["items"]
    acts = [(line["what"], line["outcome"]) for line in lines if line["event"] == "act"]
    assert acts == [
        ("PUT /api/v1/trust/local", "200"),
        ("POST /api/v1/jobs/one/cancel", "200"),
        ("POST /api/v1/models/nothing/pin", "404"),
        ("POST /api/v1/gpus/***/drain", "404"),
    ]
    refused = [line for line in lines if line["event"] == "refused"]
    assert [line["what"] for line in refused] == [
        "PUT /api/v1/trust/x",
        "POST /api/v1/server/stop",
        "GET /api/v1/jobs",
    ]
    assert refused[0]["outcome"] == "too_large"
    assert (refused[2]["who"], refused[2]["outcome"]) == (USER, "unauthorized")
    assert [line["event"] for line in lines].count("admitted") == 1
    file = instance.home.audit_log
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    instance.ok("down")
    (last,) = instance.json("audit", "-n", "1")["items"]
    assert (last["event"], last["count"] > 50) == ("admitted", True)
    assert token not in file.read_text()
