"""Reservations, end to end: what is reserved is lent out, and taken back."""

from collections.abc import Iterator

import pytest

from tests.support.instance import TestInstance, make_instance
from tests.support.over_budget import SAVES_WHEN_ASKED
from tests.support.wait import wait_until

GPU = {"gpus": 1}
NOW = ("--from", "now", "--to", "2099-01-01 00:00", "--timezone", "Europe/Berlin")


@pytest.fixture
def instance() -> Iterator[TestInstance]:
    with make_instance() as made:
        made.ok("up", "--simulate-gpus", "1x24")
        yield made


def test_the_jobs_of_its_holder_take_back_what_was_lent(
    instance: TestInstance,
) -> None:
    lent = instance.submit(
        ["sh", "-c", SAVES_WHEN_ASKED],
        resources=GPU,
        preemptible=True,
        checkpoint={"path": "step-*.txt"},
    )
    wait_until(lambda: "ready" in instance.run("logs", lent).stdout, what="it to run")
    vision = ("--project", "vision", "--gpus", "1")
    made = instance.json("reservations", "add", *vision, *NOW)
    assert (made["state"], made["problem"]) == ("current", "")
    refused = instance.run("reservations", "add", *vision, *NOW)
    assert refused.returncode == 4
    assert made["id"] in refused.stderr
    assert "None is free then" in refused.stderr
    # A kill changes nothing of it.
    instance.kill("server")
    instance.ok("up")
    own = instance.submit(["true"], resources=GPU, project="vision")
    assert instance.wait(own).state == "completed"
    # What was lent is lent again, and its job goes on from its checkpoint.
    assert instance.wait(lent).state == "completed"
    (saved,) = instance.json("checkpoints", lent)["items"]
    first, second = instance.job(lent).attempts
    assert (first.reason, second.resumed_from) == ("preempted", saved["id"])
    assert "from 7" in instance.ok("logs", lent)
    other = instance.submit(["true"], resources=GPU)
    why = instance.json("why", other)
    assert why["constraint"] == "reserved"
    assert "reserved for project vision from" in why["summary"]
    assert made["id"] in instance.ok("reservations", "list")
    assert "1 GPU" in instance.ok("reservations", "show", made["id"][-8:])
    instance.ok("reservations", "rm", made["id"])
    assert instance.wait(other).state == "completed"
    assert instance.json("reservations", "list")["items"] == []
    kinds = [event["kind"] for event in instance.json("events")["items"]]
    for kind in ("added", "began", "removed"):
        assert f"reservation.{kind}" in kinds
