"""Plain HTTP to an instance, without our SDK: what any program sees."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

import httpx

from tests.support.instance import TestInstance


def http(instance: TestInstance, **more: Any) -> httpx.Client:
    """A client with the instance's address and token."""
    address = instance.address()
    headers = {"Authorization": f"Bearer {address.token}"} | more.pop("headers", {})
    # Reading the system's certificates takes as long as many a request.
    return httpx.Client(
        base_url=address.url, headers=headers, timeout=30, verify=False, **more
    )


def spec(instance: TestInstance, *command: str, **fields: Any) -> dict[str, Any]:
    """A JobSpec's body that runs `command` in the instance's work folder."""
    return {
        "command": list(command) or ["true"],
        "workdir": str(instance.work),
        **fields,
    }


def job_count(web: httpx.Client) -> int:
    """How many jobs the instance has ever had."""
    return sum(web.get("/api/v1/server").json()["jobs"].values())


def check_problem(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The problem document of an answer that must be one."""
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    body = answer.json()
    assert (answer.status_code, body["status"], body["code"]) == (
        status,
        status,
        code,
    ), body
    assert body["type"] == f"urn:gpuyard:error:{code}"
    assert body["title"] and body["detail"]
    for fault in body.get("faults", []):
        assert fault["field"] and fault["fault"] and fault["remedy"], fault
    return body


def sse(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Server-sent events as `id` (None without one), `event` and decoded `data`;
    comments, and ids without an event, are skipped.
    """
    fields: dict[str, str] = {}
    for line in lines:
        if line.startswith(":"):
            continue
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
            continue
        if "data" in fields:
            yield {
                "id": fields.get("id"),
                "event": fields["event"],
                "data": json.loads(fields["data"]),
            }
        fields = {}
