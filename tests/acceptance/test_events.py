"""The stream of events: whole lives in order, nothing missed or repeated over a break,
listeners that never read.
"""

import itertools
import json
import os
import resource
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import httpx
import psutil
import pytest

from tests.support.instance import TestInstance, make_instance
from tests.support.wait import wait_until
from tests.support.web import check_problem, http, spec, sse

LIFE = [
    "job.submitted",
    "attempt.intended",
    "attempt.started",
    "checkpoint.saved",
    "job.completed",
]
TRAIN = """
import time, pathlib
for n in range(1, 4):
    print(f"iter {n}: loss {5 - n}.0, time 1.00ms", flush=True)
    time.sleep(0.6)
pathlib.Path("life_3.pt").write_text("weights")
"""

# More than the files that the server may open at first. `make soak` asks for 10,000.
LISTENERS = int(os.environ.get("GPUYARD_LISTENERS", "600"))
# What a listener may cost, in bytes: 34 KB when it waits, and what is on its way to it.
MEMORY_OF_ONE = 200_000
FEW_FILES = 512
PATIENCE_S = 120


def listen(
    web: httpx.Client, last_id: str | None = None, **query: Any
) -> Iterator[dict[str, Any]]:
    """The live stream; ends when the consumer leaves it."""
    headers = {"Accept": "text/event-stream"} | (
        {"Last-Event-ID": last_id} if last_id is not None else {}
    )
    with web.stream("GET", "/api/v1/events", params=query, headers=headers) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield from sse(answer.iter_lines())


def journal(web: httpx.Client, **query: Any) -> list[dict[str, Any]]:
    """Every event, read page by page."""
    found: list[dict[str, Any]] = []
    after: int | None = 0
    while after is not None:
        page = web.get(
            "/api/v1/events", params={**query, "after": after, "limit": 1000}
        ).json()
        found += page["items"]
        after = page["next"]
    return found


def test_a_jobs_whole_life_comes_in_order_and_its_progress_without_ids(
    shared_instance: TestInstance,
) -> None:
    (shared_instance.work / "train.py").write_text(TRAIN)
    shared_instance.submit(["true"])
    job_id = shared_instance.submit(
        ["python3", "train.py"], checkpoint={"path": "life_*.pt"}
    )
    seen: list[dict[str, Any]] = []
    with http(shared_instance) as web:
        for message in listen(web, after=0, job=job_id):
            seen.append(message)
            if message["event"] == "job.completed":
                break
    assert {message["data"]["job_id"] for message in seen} == {job_id}
    lasting = [message for message in seen if message["id"] is not None]
    ids = [int(message["id"]) for message in lasting]
    assert ids == sorted(set(ids)) == [message["data"]["seq"] for message in lasting]
    assert [message["event"] for message in lasting if message["event"] in LIFE] == LIFE
    passing = [message for message in seen if message["id"] is None]
    assert {message["event"] for message in passing} == {"job.progress"}
    steps = [message["data"]["data"]["step"] for message in passing]
    assert steps == sorted(steps) and steps[-1] == 3
    assert passing[-1]["data"]["data"]["metrics"]["loss"] == 2.0


def test_a_broken_stream_goes_on_where_it_was_even_after_the_server_was_killed(
    instance: TestInstance,
) -> None:
    instance.ok("up")
    with http(instance) as web:
        web.post("/api/v1/jobs", json=[spec(instance) for _ in range(4)])
        seen = list(itertools.islice(listen(web, "0"), 5))
        web.post("/api/v1/jobs", json=[spec(instance) for _ in range(4)])
        seen += itertools.islice(listen(web, seen[-1]["id"]), 5)
    running = instance.submit(["sleep", "0.5"])
    instance.wait(running, "running")
    instance.kill("server")
    # The command starts the server anew.
    assert instance.json("show", running)["id"] == running
    instance.wait(running)
    with http(instance) as web:
        whole = journal(web)
        seen += itertools.islice(listen(web, seen[-1]["id"]), len(whole) - len(seen))
    assert [int(message["id"]) for message in seen] == [event["seq"] for event in whole]
    assert [message["data"] for message in seen] == whole


def test_what_is_watched_comes_again_when_it_changes(
    shared_instance: TestInstance,
) -> None:
    path = "/api/v1/jobs?name=watched&limit=1"
    with http(shared_instance) as web:
        bodies = (
            event["data"]["body"]
            for event in listen(web, watch=["/api/v1/gpus", path])
            if event["event"] == "answer" and event["data"]["path"] == path
        )
        assert next(bodies)["items"] == []
        job = spec(shared_instance, name="watched")
        with http(shared_instance) as other:
            other.post("/api/v1/jobs", json=job).raise_for_status()
        states = (body["items"][0]["state"] for body in bodies)
        assert "completed" in states
        refused = web.get(
            "/api/v1/events",
            params={"watch": "/api/v1/tokens"},
            headers={"Accept": "text/event-stream"},
        )
    problem = check_problem(refused, 422, "invalid_input")
    assert problem["faults"][0]["field"] == "watch"


def test_listeners_that_never_read_cost_little_and_hold_up_nobody(
    instance: TestInstance,
) -> None:
    """80 of them, each owed more than the kernel keeps for it (4 MB); one that reads
    in the end gets everything.
    """
    instance.ok("up")
    with http(instance) as web:
        parent = web.post("/api/v1/jobs", json=spec(instance, "sleep", "300")).json()[
            "id"
        ]
        children = [
            spec(instance, name="🙂" * 200, depends_on=[parent]) for _ in range(2500)
        ]
        assert web.post("/api/v1/jobs", json=children).status_code == 201
        server = psutil.Process(instance.pid("server"))
        before = server.memory_info().rss
        listeners = [mute_listener(web) for _ in range(80)]
        wait_until(
            lambda: all(listener.recv(1, socket.MSG_PEEK) for listener in listeners),
            what="all to be answered",
        )
        assert web.post("/api/v1/jobs", json=children).status_code == 201
        assert web.post(f"/api/v1/jobs/{parent}/cancel").status_code == 200
        wait_until(
            lambda: web.get("/api/v1/server").json()["jobs"].get("queued", 0) == 0,
            what="all to be over",
        )
        grown = server.memory_info().rss - before
        whole = journal(web)
        assert (
            sum(len(json.dumps(event, ensure_ascii=False).encode()) for event in whole)
            > 5e6
        )
        assert grown < len(listeners) * 1e6
        lines = listeners[0].makefile(encoding="utf-8")
        read = itertools.islice(
            (line for line in lines if line.startswith("id: ")), len(whole) + 1
        )
        assert next(read) == "id: 0\n"  # where the stream begins
        assert [int(line.removeprefix("id: ")) for line in read] == [
            event["seq"] for event in whole
        ]
        for listener in listeners:
            listener.close()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_thousands_that_never_read_hold_up_nobody(few_files: TestInstance) -> None:
    """Each is woken for every event, and soon takes no more; the server's memory does
    not grow with what it is owed.
    """
    instance = few_files
    with many_files(), http(instance) as web:
        web.timeout = PATIENCE_S
        parent = web.post("/api/v1/jobs", json=spec(instance, "sleep", "300")).json()[
            "id"
        ]
        server = psutil.Process(instance.pid("server"))
        before = server.memory_info().rss
        listeners: list[socket.socket] = []
        while len(listeners) < LISTENERS:
            # A hundred at a time: a server may refuse many that show no token yet.
            listeners += [mute_listener(web, after=None) for _ in range(100)]
            for listener in listeners[-100:]:
                listener.settimeout(PATIENCE_S)
                assert listener.recv(1, socket.MSG_PEEK)
        seen = len(journal(web))
        children = [
            spec(instance, name="🙂" * 200, depends_on=[parent]) for _ in range(100)
        ]
        for _ in range(4):
            assert web.post("/api/v1/jobs", json=children).status_code == 201
            assert web.get("/api/v1/jobs", params={"limit": 1}).status_code == 200
        assert web.post(f"/api/v1/jobs/{parent}/cancel").status_code == 200
        wait_until(
            lambda: web.get("/api/v1/server").json()["jobs"].get("queued", 0) == 0,
            PATIENCE_S,
            "all to be over",
        )
        for listener in listeners[::100]:  # woken, as all of them are by then
            while b"job.submitted" not in listener.recv(4096):
                pass
        owed = sum(len(json.dumps(event)) for event in journal(web)[seen:])
        assert owed > 2 * MEMORY_OF_ONE
        assert server.memory_info().rss - before < LISTENERS * MEMORY_OF_ONE
        lines = listeners[-1].makefile(encoding="utf-8")
        ids = (line for line in lines if line.startswith("id: "))
        assert int(next(ids).removeprefix("id: ")) <= seen  # where the stream begins
        assert int(next(ids).removeprefix("id: ")) == seen + 1
        for listener in listeners:
            listener.close()


def test_jobs_may_open_as_many_files_as_before_the_server_raised_its_limit(
    few_files: TestInstance,
) -> None:
    job_id = few_files.submit(["sh", "-c", "ulimit -Sn"])
    few_files.wait(job_id)
    assert few_files.ok("logs", job_id) == f"{FEW_FILES}\n"


@pytest.fixture(scope="module")
def few_files() -> Iterator[TestInstance]:
    """An instance that was started where a program may open few files at first."""
    with make_instance(TESTS_REAL_PYTHON="1") as made:
        with files_limited_to(FEW_FILES):
            made.ok("up")
        yield made


@contextmanager
def many_files() -> Iterator[None]:
    """This test needs a file for each listener, too."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = LISTENERS + FEW_FILES
    assert hard >= needed, f"this needs `ulimit -Hn {needed}`, and has {hard}"
    with files_limited_to(hard):
        yield


@contextmanager
def files_limited_to(number: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def mute_listener(web: httpx.Client, after: int | None = 0) -> socket.socket:
    """A connection that asks for every event there ever was (or from now on), with as
    small a buffer as can be.
    """
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    connection.connect((web.base_url.host, web.base_url.port))
    path = "/api/v1/events" if after is None else f"/api/v1/events?after={after}"
    request = (
        f"GET {path} HTTP/1.1\r\nHost: instance\r\nAuthorization:"
        f" {web.headers['Authorization']}\r\n"
    )
    connection.sendall(f"{request}Accept: text/event-stream\r\n\r\n".encode())
    return connection


def test_the_command_lists_and_follows_events(shared_instance: TestInstance) -> None:
    first = shared_instance.submit(["true"], name="listed")
    shared_instance.wait(first)
    events = shared_instance.json("events", "--job", "listed")["items"]
    assert [events[0]["kind"], events[-1]["kind"]] == ["job.submitted", "job.completed"]
    assert (
        shared_instance.json(
            "events", "--after", str(events[-1]["seq"] - 1), "-n", "1"
        )["items"]
        == events[-1:]
    )
    page = shared_instance.json("events", "--after", "0", "-n", "2")
    assert page["next"] == str(page["items"][-1]["seq"]) == "2"
    newest = shared_instance.json("events", "--job", "listed", "-n", "2")
    assert newest == {"items": events[-2:], "next": None}
    ended_at = str(datetime.fromtimestamp(events[-1]["at"] - 1e-4, UTC))
    late = shared_instance.json("events", "--job", "listed", "--since", ended_at)
    assert late["items"] == events[-1:]
    both = shared_instance.run("events", "--after", "1", "--since", "1h")
    assert (both.returncode, "--since: goes with no --after" in both.stderr) == (
        2,
        True,
    )
    following = shared_instance.popen("events", "-f", "--json", "--after", "0")
    assert following.stdout is not None
    second = shared_instance.submit(["true"])
    lines: list[dict[str, Any]] = []
    while not lines or (lines[-1]["kind"], lines[-1]["job_id"]) != (
        "job.completed",
        second,
    ):
        lines.append(json.loads(following.stdout.readline()))
    assert [line["seq"] for line in lines if line["seq"]] == list(
        range(1, lines[-1]["seq"] + 1)
    )
    following.send_signal(signal.SIGINT)
    assert following.communicate(timeout=60)[1] == ""


def test_following_into_a_pipe_that_closes_is_no_error(
    shared_instance: TestInstance,
) -> None:
    following = shared_instance.popen("events", "-f", "--after", "0")
    assert following.stdout is not None
    assert following.stdout.readline()
    following.stdout.close()
    while following.poll() is None:  # it can notice only when it writes
        shared_instance.wait(shared_instance.submit(["true"]))
    assert following.stderr is not None
    assert (following.returncode, following.stderr.read()) == (0, "")
    following.stderr.close()
