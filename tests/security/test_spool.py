"""Files in the spool that were made to stop it, or to read what others may not."""

import os
from pathlib import Path

from tests.acceptance.test_spool import ended, llm, put, spool_instance
from tests.support.instance import TestInstance
from tests.support.wait import wait_until

__all__ = ["spool_instance"]


def test_a_bad_file_is_refused_and_stops_nothing(spool_instance: TestInstance) -> None:
    queue = spool_instance.work / "tasks" / "llm_queue" / "priority_5"
    secret = spool_instance.work / "secret"
    secret.write_text('{"task_id": "hidden words"}')
    (queue / "a-folder.json").mkdir()
    (queue / "a-link.json").symlink_to(secret)
    os.mkfifo(queue / "a-pipe.json")
    with (queue / "a-huge.json").open("wb") as huge:
        huge.truncate(17_000_000)
    Path(os.fsdecode(os.fsencode(queue) + b"/a-\xff.json")).write_text("[]")
    bad = {
        "a-folder.json": "is no regular file",
        "a-link.json": "is or lies below a link",
        "a-pipe.json": "is no regular file",
        "a-huge.json": "has more than 16,000,000 bytes",
        "a-\udcff.json": "is no task",
        "a-deep.json": "is nested too deeply",
        "a-surrogate.json": "is half of a character",
    }
    put(spool_instance, "llm_queue/priority_5", "a-deep.json", "[" * 100_000)
    surrogate = '{"task_id": "\\ud800", "task_class": "llm", "prompt": "x"}'
    put(spool_instance, "llm_queue/priority_5", "a-surrogate.json", surrogate)
    put(spool_instance, "llm_queue/priority_1", "good.json", llm("t", "x"))
    ended(spool_instance, "complete", "good.json")
    wait_until(lambda: not list(queue.iterdir()), 20, "all bad files to be refused")
    failed = spool_instance.work / "tasks" / "failed"
    reasons = {path.name: path.read_text() for path in failed.glob("*.reason.txt")}
    for name, reason in bad.items():
        assert reason in reasons[f"{Path(name).stem}.reason.txt"]
    assert "hidden words" not in "".join(reasons.values())
