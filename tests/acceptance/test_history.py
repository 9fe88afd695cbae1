"""`gpuyard ledger prune`: what would go, and what went."""

from tests.support.instance import TestInstance
from tests.support.wait import wait_until


def test_prune_says_what_would_go_and_removes_it(instance: TestInstance) -> None:
    instance.home.create()
    instance.home.settings.write_text("[retention]\njobs_days = 1e-9\nkeys_days = 0\n")
    instance.ok("run", "--", "echo", "its words")
    (job,) = instance.json("jobs")["items"]
    (output,) = (instance.home.node / "attempts").glob("*.log")
    planned = instance.json("ledger", "prune", "--dry-run")
    assert planned["kinds"]["jobs"]["count"] == 1
    assert planned["kinds"]["attempts"]["bytes"] > 0
    assert len(instance.json("jobs")["items"]) == 1
    assert "1 jobs" in instance.ok("ledger", "prune")
    assert instance.json("jobs")["items"] == []
    assert instance.run("show", job["id"]).returncode == 3
    wait_until(lambda: not output.exists(), what="the node to delete the output")
    assert "nothing is old enough" in instance.ok("ledger", "prune")
    assert instance.json("ledger", "check")["ok"]
