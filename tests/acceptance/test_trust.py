"""Places that are not trusted, end to end: `gpuyard trust` and `/api/v1/trust`, and what they do to jobs."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gpuyard.client.aio import AsyncClient
from gpuyard.domain.errors import NotFoundError
from tests.support.nvml import FakeGpus
from tests.support.nvml.fixtures import fake_gpus, nvml_library  # noqa: F401  (fixtures)
from tests.support.wait import wait_until
from tests.support.web import check_problem, http
from tests.support.yard import TestYard, make_yard

A, B = (f"GPU-{letter * 8}-0000-0000-0000-000000000000" for letter in "ab")
SHOW = ["sh", "-c", "echo $CUDA_VISIBLE_DEVICES"]
ONE = {"resources": {"gpus": {"count": 1}}}
AHEAD = time.time() + 3600


@pytest.fixture
def gpu_yard(fake_gpus: FakeGpus) -> Iterator[TestYard]:  # noqa: F811
    """A machine with two GPUs."""
    for uuid in (A, B):
        fake_gpus.add(uuid)
    with make_yard(**fake_gpus.env(), GPUYARD_NODE__DISCOVERY_S="0.2") as yard:
        yard.ok("up")
        wait_until(lambda: states(yard) == {A: "idle", B: "idle"}, 20, "the GPUs")
        yield yard


@pytest.fixture
def web(shared_yard: TestYard) -> Iterator[httpx.Client]:
    with http(shared_yard) as client:
        yield client


def states(yard: TestYard) -> dict[str, str]:
    return {gpu["uuid"]: gpu["state"] for gpu in yard.json("gpus")["items"]}


def test_a_gpu_in_quarantine_gets_no_jobs_until_it_is_forgotten(gpu_yard: TestYard) -> None:
    """Jobs go to the other; with both in quarantine they wait and say why; a new server still knows."""
    running = gpu_yard.submit(["sleep", "600"], resources={"gpus": {"count": 1, "uuid": [A]}})
    gpu_yard.wait(running, "running")
    said = gpu_yard.ok("trust", "quarantine", f"gpu:{A}", "--for", "4h", "--reason", "wrong answers")
    assert f"gpu:{A} is in quarantine until" in said
    assert gpu_yard.json("show", running)["state"] == "running"
    assert gpu_yard.ok("run", "-g", "1", "--", *SHOW).strip() == B
    gpu_yard.ok("cancel", running)
    assert gpu_yard.ok("run", "-g", "1", "--", *SHOW).strip() == B
    assert states(gpu_yard) == {A: "quarantined", B: "idle"}
    assert "wrong answers" in gpu_yard.ok("gpus")
    refused = gpu_yard.run("gpus", "--release", A)
    assert (refused.returncode, f"gpuyard trust forget gpu:{A}" in refused.stderr) == (4, True)

    gpu_yard.ok("trust", "quarantine", f"gpu:{B}", "--reason", "too slow")
    waiting = gpu_yard.submit(SHOW, **ONE)
    why = gpu_yard.json("why", waiting)
    assert (why["pending"], why["constraint"]) == (True, "quarantined")
    assert "wrong answers" in why["summary"]
    assert "too slow" in why["summary"]
    allowed = gpu_yard.submit(SHOW, **ONE, allowed={"quarantined": True})
    assert gpu_yard.wait(allowed).state == "completed"
    assert gpu_yard.ok("run", "-g", "1", "--allow-quarantined", "--", *SHOW).strip() in (A, B)

    gpu_yard.kill("server")
    gpu_yard.ok("up")
    assert {t["place"]: t["reason"] for t in gpu_yard.json("trust")["items"]} == {
        f"gpu:{A}": "wrong answers", f"gpu:{B}": "too slow"}  # fmt: skip
    wait_until(lambda: states(gpu_yard) == {A: "quarantined", B: "quarantined"}, 20, "the GPUs to be back")
    assert gpu_yard.json("why", waiting)["constraint"] == "quarantined"
    assert gpu_yard.ok("trust", "forget", f"gpu:{B}").startswith(f"gpu:{B} is trusted")
    done = gpu_yard.wait(waiting)
    assert (done.state, done.attempts[-1].gpus) == ("completed", [B])


def test_a_quarantine_ends_by_itself(gpu_yard: TestYard) -> None:
    gpu_yard.ok("trust", "quarantine", "local", "--for", "3s")
    job = gpu_yard.submit(["true"])
    done = gpu_yard.wait(job)
    until = gpu_yard.json("trust")["items"][0]["quarantined_until"]
    assert done.state == "completed"
    assert done.started_at >= until


# --- the resource ---


def test_what_is_recorded_is_listed_shown_replaced_and_forgotten(web: httpx.Client, shared_yard: TestYard) -> None:
    assert web.get("/api/v1/trust").json() == {"items": [], "next": None}
    assert "trusted alike" in shared_yard.ok("trust")
    finding = {"score": 0.25, "quarantined_until": AHEAD, "reason": "slow"}
    for place in ("local", "local/a/b:c", "node:of an other name", "gpu:GPU-1"):
        answer = web.put(f"/api/v1/trust/{place}", json=finding)
        assert answer.status_code == 200, answer.text
        shown = web.get(f"/api/v1/trust/{place}").json()
        assert shown == answer.json()
        assert {**finding, "place": place, "updated_at": shown["updated_at"]} == shown
    listed = [item["place"] for item in web.get("/api/v1/trust").json()["items"]]
    assert listed == ["gpu:GPU-1", "local", "local/a/b:c", "node:of an other name"]
    assert web.put("/api/v1/trust/local", json={"score": 1}).json()["quarantined_until"] is None
    table = shared_yard.ok("trust")
    assert "1.00" in table
    assert "0.25" in table
    for place in listed:
        before = web.get(f"/api/v1/trust/{place}").json()
        assert web.delete(f"/api/v1/trust/{place}").json() == before
        check_problem(web.get(f"/api/v1/trust/{place}"), 404, "not_found")
        check_problem(web.delete(f"/api/v1/trust/{place}"), 404, "not_found")
    assert web.get("/api/v1/trust").json()["items"] == []
    kinds = [event["kind"] for event in web.get("/api/v1/events", params={"limit": 10000}).json()["items"]]
    assert kinds.count("trust.changed") == 2 * len(listed) + 1


@pytest.mark.parametrize(
    ("place", "body", "field", "said"),
    [
        ("moon", {}, "place", "there is no provider 'moon'"),
        ("moon/gpu", {}, "place", "there is no provider 'moon'"),
        ("host:box", {}, "place", "is no place"),
        ("node:", {}, "place", "names no node"),
        ("gpu: ", {}, "place", "names no gpu"),
        ("local/", {}, "place", "is no place"),
        ("local", {"score": 1.5}, "score", "is 1.5"),
        ("local", {"score": -0.1}, "score", "is -0.1"),
        ("local", {"score": True}, "score", "is True"),
        ("local", {"score": "high"}, "score", "is 'high'"),
        ("local", {"quarantined_until": 1.0}, "quarantined_until", "1970-01-01 00:00:01 UTC), which is past"),
        ("local", {"quarantined_until": "tomorrow"}, "quarantined_until", "is 'tomorrow'"),
        ("local", {"quarantined_until": 1e18}, "quarantined_until", "is 1e+18"),
        ("local", {"reason": "a\x1b[31m"}, "reason", "control characters"),
        ("local", {"reason": "x" * 501}, "reason", "is 'xxx"),
        ("local", {"until": AHEAD}, "until", "is"),
        ("local", [], "(body)", "is []"),
    ],
)
def test_each_fault_is_named_and_nothing_is_recorded(
    web: httpx.Client, place: str, body: Any, field: str, said: str
) -> None:
    problem = check_problem(web.put(f"/api/v1/trust/{place}", json=body), 422, "invalid_input")
    (fault,) = problem["faults"]
    assert fault["field"] == field
    assert said in fault["fault"]
    assert web.get("/api/v1/trust").json()["items"] == []


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [(["quarantine", "moon"], 2, "place: there is no provider 'moon'"),
     (["quarantine", "local", "--for", "a while"], 2, "--for: 'a while' is not a duration"),
     (["quarantine", "local", "--for", "0s"], 2, "--for: is 0s"),
     (["forget", "local"], 3, "Nothing is recorded about 'local'")],
)  # fmt: skip
def test_the_command_names_faults_too(shared_yard: TestYard, words: list[str], code: int, said: str) -> None:
    refused = shared_yard.run("trust", *words)
    assert (refused.returncode, said in refused.stderr) == (code, True), refused.stderr


def test_the_sdk_records_and_forgets_in_both_colours(shared_yard: TestYard) -> None:
    with shared_yard.client() as client:
        client.record_trust("local", score=0.5, reason="half")
        assert [(t.place, t.score) for t in client.trust()] == [("local", 0.5)]

    async def again() -> None:
        async with AsyncClient(shared_yard.address()) as client:
            assert (await client.trust_of("local")).reason == "half"
            assert (await client.record_trust("local", quarantined_until=AHEAD)).score is None
            assert [t.place for t in await client.trust()] == ["local"]
            await client.forget_trust("local")
            with pytest.raises(NotFoundError):
                await client.trust_of("local")

    asyncio.run(again())


def test_a_quarantine_keeps_the_score_and_is_shown_with_its_provider(shared_yard: TestYard) -> None:
    with shared_yard.client() as client:
        client.record_trust("local", score=0.75)
        assert shared_yard.json("trust", "quarantine", "local", "--reason", "odd")["score"] == 0.75
        assert "odd" in shared_yard.ok("providers")
        assert "odd" in shared_yard.ok("nodes")
        client.forget_trust("local")
        assert "odd" not in shared_yard.ok("providers")
