"""What `gpuyard show` says of a job."""

import pytest

from gpuyard.cli.show import print_attempts
from gpuyard.cli.shown_fields import shown_fields
from gpuyard.domain.jobs import Attempt, Job


def job(**fields):
    known = {"id": "job_1", "name": "a", "state": "completed", "priority": 3}
    return Job.model_validate({**known, "created_at": 0.0, **fields})


def test_the_gpus_of_a_job_are_named():
    shown = shown_fields(
        job(kind="command", spec={"command": ["true"]}), ["Tesla T4 (GPU-a)", "GPU-b"]
    )
    assert shown["gpus"] == "Tesla T4 (GPU-a), GPU-b"


def test_the_cost_of_a_rented_machine_is_told_apart_with_its_prices():
    cost = {
        "amount": "1.022",
        "basis": "offer",
        "parts": {"machine": "1.006", "disk": "0.011", "address": "0.005"},
        "part_prices": {"machine": "1.006", "disk": "0.011", "address": "0.005"},
        "price_sources": {"machine": "AWS price list, 2026-11-29", "disk": "a, b"},
    }
    shown = shown_fields(job(kind="command", spec={}, cost=cost), [])
    assert shown["cost"] == "$1.02 (of it disk 0.011, address 0.0050)"
    assert shown["prices"] == (
        "machine 1.006 USD an hour (AWS price list, 2026-11-29);"
        " disk 0.011 USD an hour (a, b)"
    )
    own = shown_fields(job(kind="command", spec={}, cost={"tier": "GPU_SMALL"}), [])
    assert own["cost"] == "$0.00 (list price of GPU_SMALL)"
    assert not own["prices"]


def test_a_prompt_is_named_with_its_model_in_one_short_line():
    spec = {"prompt": "first line\nsecond line " + "word " * 100, "model": "qwen2.5:7b"}
    shown = shown_fields(job(kind="llm", spec=spec), [])
    assert shown["model"] == "qwen2.5:7b"
    assert shown["prompt"].startswith("first line second line word")
    assert len(shown["prompt"]) <= 200
    assert not shown["command"]


@pytest.mark.parametrize(
    ("place", "environment"),
    [
        ({}, "the server's own"),
        ({"provider": "local"}, "the server's own"),
        ({"provider": "slurm"}, ""),
        ({"image": "debian"}, ""),
    ],
)
def test_only_what_runs_here_has_the_servers_environment(
    place: dict[str, str], environment: str
) -> None:
    """Also while it waits, and has no provider but the one that was asked for."""
    spec = {"command": ["true"], **place}
    shown = shown_fields(job(kind="command", state="queued", spec=spec), [])
    assert shown["environment"] == environment


def test_the_message_of_each_attempt_is_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    known = {"token": 1, "provider": "local", "created_at": 0.0, "state": "ended"}
    first = Attempt(id="attempt_1", number=1, message="no space left", **known)
    last = Attempt(id="attempt_2", number=2, message="no GPU left", **known)
    nodes = ["node_0001", "node_0002"]
    attempts = [
        attempt.model_copy(update={"node": node})
        for attempt, node in zip((first, last), nodes, strict=True)
    ]
    print_attempts(attempts, {"node_0001": "lab2"})
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[2] == "lab2"
    assert lines[2].split()[2] == "ode_0002", "a node that is gone has no name"
    assert lines[-2:] == ["attempt 1  no space left", "message  no GPU left"]


@pytest.mark.parametrize(
    ("reason", "messages", "shown"),
    [
        (None, [], None),
        (
            "dependency_failed",
            [],
            "dependency_failed: a job that it depends on did not end as it must for"
            " this one",
        ),
        ("no_image", ["manifest unknown"], "no_image"),
        ("from_elsewhere", [], "from_elsewhere"),
    ],
)
def test_a_reason_is_explained_where_no_message_does(
    reason: str | None, messages: list[str], shown: str | None
) -> None:
    known = {"token": 1, "provider": "local", "created_at": 0.0, "state": "ended"}
    attempts = [
        Attempt(id=f"attempt_{number}", number=number, message=message, **known)
        for number, message in enumerate(messages, 1)
    ]
    ended = job(kind="command", state="failed", reason=reason, attempts=attempts)
    assert shown_fields(ended, [])["reason"] == shown
