"""The HTTP contract, spoken by a plain client: shapes, codes, paging, idempotency,
series, checkpoints.
"""

import hashlib
import re
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.instance import TestInstance, make_instance
from tests.support.nvml import FakeGpus
from tests.support.wait import wait_until
from tests.support.web import check_problem, http, job_count, spec

METHODS = ("get", "post", "put", "patch", "delete")


@pytest.fixture
def web(shared_instance: TestInstance) -> Iterator[httpx.Client]:
    with http(shared_instance) as client:
        yield client


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method in METHODS:
            if method in item:
                yield method, path, item[method]


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        yield from [node["$ref"]] if "$ref" in node else []
        node = list(node.values())
    for inner in node if isinstance(node, list) else []:
        yield from references(inner)


def test_openapi_describes_every_route_and_every_reference_in_it_resolves(
    web: httpx.Client,
) -> None:
    document = web.get("/openapi.json").json()
    assert document["openapi"].startswith("3.")
    for reference in set(references(document)):
        target: Any = document
        for step in reference.removeprefix("#/").split("/"):
            target = target[step]
    found = list(operations(document))
    assert (
        len({operation["operationId"] for _, _, operation in found}) == len(found) > 15
    )
    for method, path, operation in found:
        assert operation["summary"] and operation["description"], (method, path)
        is_openai = path.startswith("/v1/")
        form = "application/json" if is_openai else "application/problem+json"
        assert form in operation["responses"]["default"]["content"], (method, path)
        parameters = {
            p["name"] for p in operation.get("parameters", []) if p["in"] == "path"
        }
        assert parameters == set(re.findall(r"\{(\w+)\}", path)), (method, path)
    assert {"JobSpec", "JobConfig", "Job", "Problem"} <= set(
        document["components"]["schemas"]
    )


def test_every_route_but_health_and_proof_wants_the_token(web: httpx.Client) -> None:
    for method, path, operation in operations(web.get("/openapi.json").json()):
        if path == "/api/v1/server/proof":
            # A server proves itself to a caller who has not yet told the token.
            assert check_problem(web.get(path), 422, "invalid_input")
            continue
        if path == "/api/v1/sign-in":
            # So a command knows how somebody may sign in who has no token yet.
            assert web.get(path).status_code == 200
            continue
        if path == "/shared/artifact":
            # The link is what proves that its holder may have the artifact.
            assert check_problem(web.get(path), 403, "forbidden")
            continue
        assert bool(operation.get("security")) == (path != "/healthz"), path
        for token in ("", "Bearer", "Bearer wrong", "Basic d3Jvbmc="):
            answer = web.request(
                method, re.sub("{.*?}", "x", path), headers={"Authorization": token}
            )
            if path == "/healthz":
                assert (answer.status_code, answer.json()["status"]) == (200, "ok")
                continue
            assert answer.headers["www-authenticate"] == "Bearer"
            if path.startswith("/v1/"):
                assert answer.status_code == 401
                assert answer.json()["error"]["code"] == "unauthorized"
            else:
                check_problem(answer, 401, "unauthorized")


def test_only_loopback_is_listened_on(shared_instance: TestInstance) -> None:
    sockets = psutil.Process(shared_instance.pid("server")).net_connections("inet")
    assert {s.laddr.ip for s in sockets if s.status == psutil.CONN_LISTEN} == {
        "127.0.0.1"
    }


@pytest.mark.parametrize(
    "mode", [None, 0o755], ids=["a new home", "a folder that others may read"]
)
def test_token_ledger_and_logs_are_private(
    instance: TestInstance, mode: int | None
) -> None:
    if mode:
        instance.home.root.mkdir()
        instance.home.root.chmod(mode)
    instance.wait(instance.submit(["true"]))
    assert stat.S_IMODE(instance.home.token.stat().st_mode) == 0o600
    assert stat.S_IMODE(instance.home.root.stat().st_mode) == (mode or 0o700)
    private = [
        instance.home.token,
        instance.home.logs,
        instance.home.node,
        instance.home.blobs,
        *instance.home.root.glob("ledger.db*"),
    ]
    assert len(private) >= 6
    assert [path for path in private if stat.S_IMODE(path.stat().st_mode) & 0o077] == []


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/api/v1/jobs/nosuch", 404, "not_found"),
        ("POST", "/api/v1/jobs/nosuch/cancel", 404, "not_found"),
        ("POST", "/api/v1/jobs/nosuch/resume", 404, "not_found"),
        ("GET", "/api/v1/jobs/nosuch/why", 404, "not_found"),
        ("GET", "/api/v1/jobs/nosuch/logs", 404, "not_found"),
        ("GET", "/api/v1/jobs/nosuch/logs?follow=true", 404, "not_found"),
        ("GET", "/api/v1/jobs/nosuch/metrics", 404, "not_found"),
        ("GET", "/api/v1/jobs/nosuch/checkpoints", 404, "not_found"),
        ("GET", "/api/v1/events?job=nosuch", 404, "not_found"),
        ("GET", "/api/v1/checkpoints/nosuch", 404, "not_found"),
        ("GET", "/api/v1/checkpoints/nosuch/content", 404, "not_found"),
        ("GET", "/api/v1/nosuch", 404, "not_found"),
        ("PUT", "/api/v1/jobs", 405, "method_not_allowed"),
        ("GET", "/api/v1/jobs?limit=0", 422, "invalid_input"),
        ("GET", "/api/v1/jobs?state=asleep", 422, "invalid_input"),
        ("GET", "/api/v1/jobs?cursor=garbage", 422, "invalid_input"),
        ("GET", f"/api/v1/jobs?{'label=a=b&' * 51}", 422, "invalid_input"),
        ("GET", "/api/v1/datasets/%1b[2J/corpus", 422, "invalid_input"),
        ("GET", "/api/v1/events?after=99999999999999999999", 422, "invalid_input"),
        ("POST", "/api/v1/server/stop?", 422, "invalid_input"),
    ],
)
def test_errors_are_problem_documents_with_stable_codes(
    web: httpx.Client, method: str, path: str, status: int, code: str
) -> None:
    body = {"running": "maybe"} if path.endswith("?") else None
    check_problem(web.request(method, path, json=body), status, code)


def test_a_method_that_is_not_there_is_refused_with_those_that_are(
    web: httpx.Client,
) -> None:
    answer = web.put("/api/v1/jobs")
    check_problem(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "GET, POST"


@pytest.mark.parametrize("header", ["abc", "-1", "²", "9" * 30])
def test_a_last_event_id_that_is_none_is_refused(
    web: httpx.Client, header: str
) -> None:
    headers = {"Accept": "text/event-stream", "Last-Event-ID": header.encode("latin-1")}
    problem = check_problem(
        web.get("/api/v1/events", headers=headers), 422, "invalid_input"
    )
    assert problem["faults"][0]["field"] == "Last-Event-ID"


def test_pages_show_each_job_once_while_new_ones_come(
    shared_instance: TestInstance, web: httpx.Client
) -> None:
    bodies = [
        spec(shared_instance, name="paged", labels={"n": str(n)}) for n in range(11)
    ]
    ids = [job["id"] for job in web.post("/api/v1/jobs", json=bodies).json()["items"]]
    seen: list[str] = []
    query: dict[str, Any] = {"name": "paged", "limit": 4}
    pages = 0
    while True:
        page = web.get("/api/v1/jobs", params=query).json()
        assert set(page) == {"items", "next"}
        seen += [job["id"] for job in page["items"]]
        pages += 1
        if page["next"] is None or pages > 9:
            break
        query["cursor"] = page["next"]
        assert (
            web.post(
                "/api/v1/jobs", json=spec(shared_instance, name="paged")
            ).status_code
            == 201
        )
    assert pages == 3
    assert seen == ids[::-1]


def test_a_key_sent_many_times_at_once_makes_one_job(
    shared_instance: TestInstance, web: httpx.Client
) -> None:
    before = job_count(web)
    body = spec(shared_instance, idempotency_key="once")
    with ThreadPoolExecutor(8) as pool:
        answers = list(
            pool.map(lambda _: web.post("/api/v1/jobs", json=body), range(8))
        )
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert job_count(web) == before + 1
    other = web.post("/api/v1/jobs", json={**body, "priority": 5})
    assert "once" in check_problem(other, 409, "refused")["detail"]
    assert job_count(web) == before + 1


def test_a_list_is_queued_whole_or_not_at_all(
    shared_instance: TestInstance, web: httpx.Client
) -> None:
    before = job_count(web)
    good = spec(shared_instance)
    problem = check_problem(
        web.post("/api/v1/jobs", json=[good, {**good, "comand": 1}, good]),
        422,
        "invalid_input",
    )
    assert problem["faults"] == [
        {
            "field": "1.comand",
            "fault": "is not a field",
            "remedy": "did you mean command?",
        }
    ]
    check_problem(
        web.post("/api/v1/jobs", json=[good, spec(shared_instance, "nosuch")]),
        422,
        "invalid_input",
    )
    check_problem(web.post("/api/v1/jobs", json=[]), 422, "invalid_input")
    assert job_count(web) == before
    answer = web.post(
        "/api/v1/jobs", json=[{**good, "name": name} for name in ("one", "two")]
    )
    assert (answer.status_code, [job["name"] for job in answer.json()["items"]]) == (
        201,
        ["one", "two"],
    )
    assert job_count(web) == before + 2


def test_the_providers_form_is_accepted_and_its_device_is_the_schedulers(
    fake_gpus: FakeGpus,
) -> None:
    """S2's JobConfig as its document has it, but for the command, which this machine
    must have.
    """
    fake_gpus.add("GPU-a", name="NVIDIA A100-SXM4-40GB", memory_mb=40960, cc="8.0")
    body = {
        "name": "pytorch-training",
        "image": "pytorch:latest",
        "command": ["sh", "-c", "echo $CUDA_VISIBLE_DEVICES"],
        "gpu_spec": {
            "gpu_type": "A100",
            "gpu_count": 1,
            "memory_gb": 40,
            "vcpus": 1,
            "ram_gb": 1,
        },
        "environment": {"CUDA_VISIBLE_DEVICES": "7"},
        "volumes": {"/data": "/host/data"},
        "timeout_minutes": 60,
        "retry_count": 3,
    }
    with make_instance(**fake_gpus.env()) as instance:
        instance.ok("up")
        with http(instance) as web:
            job = web.post("/api/v1/jobs", json=body).json()
            assert "CUDA_VISIBLE_DEVICES" in job["warnings"][0]
            assert instance.wait(job["id"]).attempts[0].gpus == ["GPU-a"]
            assert web.get(f"/api/v1/jobs/{job['id']}/logs").text == "GPU-a\n"
            kept = web.get(f"/api/v1/jobs/{job['id']}").json()["spec"]
            assert (kept["timeout_s"], kept["retry_count"]) == (3600, 3)
            problem = check_problem(
                web.post("/api/v1/jobs", json={**body, "timeout_minutes": -1}),
                422,
                "invalid_input",
            )
            assert problem["faults"][0]["field"] == "timeout_minutes"


def test_prometheus_metrics_parse_and_count_the_jobs(
    shared_instance: TestInstance, web: httpx.Client
) -> None:
    shared_instance.wait(shared_instance.submit(["true"]))
    answer = web.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    families = {
        family.name: family for family in text_string_to_metric_families(answer.text)
    }
    jobs = {
        sample.labels["state"]: sample.value
        for sample in families["gpuyard_jobs"].samples
    }
    assert sum(jobs.values()) == job_count(web)
    assert jobs["completed"] >= 1
    assert {
        "gpuyard_attempts_live",
        "gpuyard_nodes",
        "gpuyard_gpus",
        "gpuyard_ledger_commits",
    } <= set(families)
    assert all(family.documentation for family in families.values())


def test_a_long_series_is_thinned_and_keeps_its_extremes(
    shared_instance: TestInstance, web: httpx.Client
) -> None:
    (shared_instance.work / "spiky.py").write_text(
        "spikes = {777: 99.0, 2222: -5.0}\nfor n in range(3000):\n    print(f'iter {n}:"
        " loss {spikes.get(n, 3 - n / 3000)}, time 1.00ms')\n"
    )
    job_id = shared_instance.submit(["python3", "spiky.py"])
    shared_instance.wait(job_id)

    def series(**query: Any) -> dict[str, Any]:
        items = web.get(
            f"/api/v1/jobs/{job_id}/metrics", params={"name": "loss", **query}
        ).json()["items"]
        return items[0] if items else {"count": 0, "points": []}

    wait_until(lambda: series()["count"] == 3000, what="all points to be stored")
    thin = series(points=50)["points"]
    whole = series(points=10_000)["points"]
    assert (len(whole), len(thin) <= 50) == (3000, True)
    assert [point["step"] for point in thin] == sorted(point["step"] for point in thin)
    assert {0, 777, 2222, 2999} <= {point["step"] for point in thin}
    check_problem(
        web.get(f"/api/v1/jobs/{job_id}/metrics?points=3"), 422, "invalid_input"
    )


def test_a_checkpoint_is_downloaded_with_its_hash(
    shared_instance: TestInstance, web: httpx.Client
) -> None:
    command = ["sh", "-c", "head -c 300000 /dev/urandom > part && mv part ckpt_7.pt"]
    job_id = shared_instance.submit(command, checkpoint={"path": "ckpt_*.pt"})
    assert shared_instance.wait(job_id).checkpoints == 1
    (checkpoint,) = web.get(f"/api/v1/jobs/{job_id}/checkpoints").json()["items"]
    content = (shared_instance.work / "ckpt_7.pt").read_bytes()
    assert (checkpoint["step"], checkpoint["size"]) == (7, len(content))
    assert checkpoint["sha256"] == hashlib.sha256(content).hexdigest()
    assert web.get(f"/api/v1/checkpoints/{checkpoint['id']}").json() == checkpoint
    answer = web.get(f"/api/v1/checkpoints/{checkpoint['id']}/content")
    assert answer.content == content
    assert answer.headers["etag"] == f'"{checkpoint["sha256"]}"'
    assert 'filename="ckpt_7.pt"' in answer.headers["content-disposition"]
    part = web.get(
        f"/api/v1/checkpoints/{checkpoint['id']}/content",
        headers={"Range": "bytes=100-199"},
    )
    assert (part.status_code, part.content) == (206, content[100:200])


def test_cancel_is_idempotent_and_never_undoes_an_end(
    shared_instance: TestInstance, web: httpx.Client
) -> None:
    running = shared_instance.submit(["sleep", "60"])
    done = shared_instance.submit(["true"])
    shared_instance.wait(running, "running")
    shared_instance.wait(done)
    assert [
        web.post(f"/api/v1/jobs/{running}/cancel").status_code for _ in range(3)
    ] == [200] * 3
    over = shared_instance.wait(running)
    assert (over.state, len(over.attempts)) == ("cancelled", 1)
    assert (
        web.post(f"/api/v1/jobs/{running}/cancel").json()["ended_at"] == over.ended_at
    )
    assert web.post(f"/api/v1/jobs/{done}/cancel").json()["state"] == "completed"


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        (
            "/api/v1/jobs?sate=queued",
            "'sate': is no parameter of this route; did you mean state? (it knows"
            " array, cursor, folded, label, limit, name, project, since, state, user)",
        ),
        (
            "/api/v1/gpus?limit=5",
            "'limit': is no parameter of this route (it knows none)",
        ),
        ("/healthz?x=1", "'x': is no parameter of this route (it knows none)"),
        ("/openapi.json?x=1", "'x': is no parameter of this route (it knows none)"),
    ],
)
def test_a_parameter_that_a_route_does_not_know_is_refused(
    web: httpx.Client, path: str, fault: str
) -> None:
    assert check_problem(web.get(path), 422, "invalid_input")["detail"] == fault


def test_every_route_refuses_a_parameter_that_it_does_not_know(
    web: httpx.Client,
) -> None:
    for method, path, _ in operations(web.get("/openapi.json").json()):
        if path.startswith("/v1/"):
            continue  # OpenAI's, whose clients may send their own
        address = path.replace("{", "").replace("}", "")
        answer = web.request(method.upper(), address, params={"nonsense": "1"})
        detail = check_problem(answer, 422, "invalid_input")["detail"]
        assert "'nonsense': is no parameter" in detail, (method, path)
