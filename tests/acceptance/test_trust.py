"""Places that are not trusted, end to end: `gpuyard trust` and `/api/v1/trust`, and
what they do to jobs.
"""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gpuyard.client.aio import AsyncClient
from gpuyard.domain.errors import NotFoundError
from tests.support.instance import TestInstance, make_instance
from tests.support.nvml import FakeGpus
from tests.support.wait import wait_until
from tests.support.web import check_problem, http

A, B = (f"GPU-{letter * 8}-0000-0000-0000-000000000000" for letter in "ab")
SHOW = ["sh", "-c", "echo $CUDA_VISIBLE_DEVICES"]
ONE = {"resources": {"gpus": {"count": 1}}}
AHEAD = time.time() + 3600


@pytest.fixture
def gpu_instance(fake_gpus: FakeGpus) -> Iterator[TestInstance]:
    """A machine with two GPUs."""
    for uuid in (A, B):
        fake_gpus.add(uuid)
    with make_instance(**fake_gpus.env(), GPUYARD_NODE__DISCOVERY_S="0.2") as instance:
        instance.ok("up")
        wait_until(lambda: states(instance) == {A: "idle", B: "idle"}, what="the GPUs")
        yield instance


@pytest.fixture
def web(shared_instance: TestInstance) -> Iterator[httpx.Client]:
    with http(shared_instance) as client:
        yield client


def states(instance: TestInstance) -> dict[str, str]:
    return {gpu["uuid"]: gpu["state"] for gpu in instance.json("gpus")["items"]}


def test_a_gpu_in_quarantine_gets_no_jobs_until_it_is_forgotten(
    gpu_instance: TestInstance,
) -> None:
    """Jobs go to the other; with both in quarantine they wait and say why; a new server
    still knows.
    """
    running = gpu_instance.submit(
        ["sleep", "600"], resources={"gpus": {"count": 1, "uuid": [A]}}
    )
    gpu_instance.wait(running, "running")
    said = gpu_instance.ok(
        "trust", "quarantine", f"gpu:{A}", "--for", "4h", "--reason", "wrong answers"
    )
    assert f"gpu:{A} is in quarantine until" in said
    assert gpu_instance.json("show", running)["state"] == "running"
    assert gpu_instance.ok("run", "-g", "1", "--", *SHOW).strip() == B
    gpu_instance.ok("cancel", running)
    assert gpu_instance.ok("run", "-g", "1", "--", *SHOW).strip() == B
    assert states(gpu_instance) == {A: "quarantined", B: "idle"}
    assert "wrong answers" in gpu_instance.ok("gpus")
    refused = gpu_instance.run("gpus", "--release", A)
    assert (refused.returncode, f"gpuyard trust forget gpu:{A}" in refused.stderr) == (
        4,
        True,
    )

    gpu_instance.ok("trust", "quarantine", f"gpu:{B}", "--reason", "too slow")
    waiting = gpu_instance.submit(SHOW, **ONE)
    why = gpu_instance.json("why", waiting)
    assert (why["pending"], why["constraint"]) == (True, "quarantined")
    assert "wrong answers" in why["summary"]
    assert "too slow" in why["summary"]
    allowed = gpu_instance.submit(SHOW, **ONE, allowed={"quarantined": True})
    assert gpu_instance.wait(allowed).state == "completed"
    assert gpu_instance.ok(
        "run", "-g", "1", "--allow-quarantined", "--", *SHOW
    ).strip() in (A, B)

    gpu_instance.kill("server")
    gpu_instance.ok("up")
    assert {t["place"]: t["reason"] for t in gpu_instance.json("trust")["items"]} == {
        f"gpu:{A}": "wrong answers",
        f"gpu:{B}": "too slow",
    }
    wait_until(
        lambda: states(gpu_instance) == {A: "quarantined", B: "quarantined"},
        what="the GPUs to be back",
    )
    assert gpu_instance.json("why", waiting)["constraint"] == "quarantined"
    assert gpu_instance.ok("trust", "forget", f"gpu:{B}").startswith(
        f"gpu:{B} is trusted"
    )
    done = gpu_instance.wait(waiting)
    assert (done.state, done.attempts[-1].gpus) == ("completed", [B])


def test_a_quarantine_ends_by_itself(gpu_instance: TestInstance) -> None:
    gpu_instance.ok("trust", "quarantine", "local", "--for", "3s")
    job = gpu_instance.submit(["true"])
    done = gpu_instance.wait(job)
    until = gpu_instance.json("trust")["items"][0]["quarantined_until"]
    assert done.state == "completed"
    assert done.started_at >= until


# --- the resource ---


def test_what_is_recorded_is_listed_shown_replaced_and_forgotten(
    web: httpx.Client, shared_instance: TestInstance
) -> None:
    assert web.get("/api/v1/trust").json() == {"items": [], "next": None}
    earlier = count_changes(web)
    assert "trusted alike" in shared_instance.ok("trust")
    finding = {"score": 0.25, "quarantined_until": AHEAD, "reason": "slow"}
    for place in ("local", "local/a/b:c", "node:of an other name", "gpu:GPU-1"):
        answer = web.put(f"/api/v1/trust/{place}", json=finding)
        assert answer.status_code == 200, answer.text
        shown = web.get(f"/api/v1/trust/{place}").json()
        assert shown == answer.json()
        assert {**finding, "place": place, "updated_at": shown["updated_at"]} == shown
    listed = [item["place"] for item in web.get("/api/v1/trust").json()["items"]]
    assert listed == ["gpu:GPU-1", "local", "local/a/b:c", "node:of an other name"]
    assert (
        web.put("/api/v1/trust/local", json={"score": 1}).json()["quarantined_until"]
        is None
    )
    table = shared_instance.ok("trust")
    assert "1.00" in table
    assert "0.25" in table
    for place in listed:
        before = web.get(f"/api/v1/trust/{place}").json()
        assert web.delete(f"/api/v1/trust/{place}").json() == before
        check_problem(web.get(f"/api/v1/trust/{place}"), 404, "not_found")
        check_problem(web.delete(f"/api/v1/trust/{place}"), 404, "not_found")
    assert web.get("/api/v1/trust").json()["items"] == []
    assert count_changes(web) - earlier == 2 * len(listed) + 1


def count_changes(web: httpx.Client) -> int:
    """How often anything was recorded or forgotten so far."""
    events = web.get("/api/v1/events", params={"limit": 10000}).json()["items"]
    return [event["kind"] for event in events].count("trust.changed")


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
        (
            "local",
            {"quarantined_until": 1.0},
            "quarantined_until",
            "1970-01-01 00:00:01 UTC), which is past",
        ),
        (
            "local",
            {"quarantined_until": "tomorrow"},
            "quarantined_until",
            "is 'tomorrow'",
        ),
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
    problem = check_problem(
        web.put(f"/api/v1/trust/{place}", json=body), 422, "invalid_input"
    )
    (fault,) = problem["faults"]
    assert fault["field"] == field
    assert said in fault["fault"]
    assert web.get("/api/v1/trust").json()["items"] == []


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["quarantine", "moon"], 2, "place: there is no provider 'moon'"),
        (
            ["quarantine", "local", "--for", "a while"],
            2,
            "--for: 'a while' is not a duration",
        ),
        (["quarantine", "local", "--for", "0s"], 2, "--for: is 0s"),
        (["forget", "local"], 3, "Nothing is recorded about 'local'"),
    ],
)
def test_the_command_names_faults_too(
    shared_instance: TestInstance, words: list[str], code: int, said: str
) -> None:
    refused = shared_instance.run("trust", *words)
    assert (refused.returncode, said in refused.stderr) == (code, True), refused.stderr


def test_the_sdk_records_and_forgets_in_both_colours(
    shared_instance: TestInstance,
) -> None:
    with shared_instance.client() as client:
        client.record_trust("local", score=0.5, reason="half")
        assert [(t.place, t.score) for t in client.trust()] == [("local", 0.5)]

    async def again() -> None:
        async with AsyncClient(shared_instance.address()) as client:
            assert (await client.trust_of("local")).reason == "half"
            assert (
                await client.record_trust("local", quarantined_until=AHEAD)
            ).score is None
            assert [t.place for t in await client.trust()] == ["local"]
            await client.forget_trust("local")
            with pytest.raises(NotFoundError):
                await client.trust_of("local")

    asyncio.run(again())


def test_a_quarantine_keeps_the_score_and_is_shown_with_its_provider(
    shared_instance: TestInstance,
) -> None:
    wait_until(lambda: shared_instance.json("nodes")["items"], what="the node to join")
    with shared_instance.client() as client:
        client.record_trust("local", score=0.75)
        assert (
            shared_instance.json("trust", "quarantine", "local", "--reason", "odd")[
                "score"
            ]
            == 0.75
        )
        assert "odd" in shared_instance.ok("providers")
        assert "odd" in shared_instance.ok("nodes")
        client.forget_trust("local")
        assert "odd" not in shared_instance.ok("providers")


VERDICT = {
    "executor": "rented",
    "gpu_class": "a6000",
    "place": "node:box",
    "outcome": "failed",
    "reason": "comparison: another answer",
    "at": 1_800_000_000.0,
    "trust": 0.25,
    "lines": [{"name": "hash", "ok": True}, {"name": "speed", "ok": None}],
    "evidence": "{}",
}


def test_a_verdict_is_left_for_others_and_pages_go_on(web: httpx.Client) -> None:
    for number in (1, 2, 3):
        left = web.put(f"/api/v1/verifications/chk_{number}", json=VERDICT)
        assert left.status_code == 200, left.text
    page = web.get("/api/v1/verifications", params={"limit": 2}).json()
    assert [one["id"] for one in page["items"]] == ["chk_3", "chk_2"]
    rest = web.get("/api/v1/verifications", params={"cursor": page["next"]}).json()
    assert [one["id"] for one in rest["items"]] == ["chk_1"]
    shown = web.get("/api/v1/verifications/chk_1").json()
    assert shown["has_evidence"]
    assert [line["ok"] for line in shown["lines"]] == [True, None]
    file = web.get("/api/v1/verifications/chk_1/evidence")
    assert (file.text, file.headers["Content-Disposition"]) == (
        "{}",
        'attachment; filename="chk_1.json"',
    )
    missing = web.get("/api/v1/verifications/chk_9/evidence")
    check_problem(missing, 404, "not_found")


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"outcome": "Passed!"}, "outcome"),
        ({"trust": 1.5}, "trust"),
        ({"reason": "two\nlines"}, "reason"),
        ({"lines": [{"name": "hash", "fine": True}]}, "lines.0.fine"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_a_verdict_that_is_wrong_is_refused_by_its_field(
    web: httpx.Client, wrong: dict[str, Any], field: str
) -> None:
    refused = web.put("/api/v1/verifications/chk_bad", json={**VERDICT, **wrong})
    problem = check_problem(refused, 422, "invalid_input")
    assert [fault["field"] for fault in problem["faults"]] == [field]
    check_problem(web.get("/api/v1/verifications/chk_bad"), 404, "not_found")
