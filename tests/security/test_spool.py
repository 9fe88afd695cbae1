"""Files in the spool that were made to stop it, or to read what others may not."""

import os
import random
from pathlib import Path

from tests.acceptance.test_spool import ended, llm, put, spool_instance
from tests.support.examples import examples
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
    wait_until(lambda: not list(queue.iterdir()), what="all bad files to be refused")
    failed = spool_instance.work / "tasks" / "failed"
    reasons = {path.name: path.read_text() for path in failed.glob("*.reason.txt")}
    for name, reason in bad.items():
        assert reason in reasons[f"{Path(name).stem}.reason.txt"]
    assert "hidden words" not in "".join(reasons.values())


def test_a_bad_file_under_way_is_refused_and_stops_nothing(
    spool_instance: TestInstance,
) -> None:
    tasks = spool_instance.work / "tasks"
    put(spool_instance, "processing", "a-surrogate.json", '{"task_id": "\\ud800"}')
    put(spool_instance, "processing", "a-nul.json", '{"task_id": "\\u0000"}')
    long_name = os.fsdecode(b"\xff" * 240) + ".json"
    put(spool_instance, "llm_queue/priority_5", long_name, "[]")
    put(spool_instance, "llm_queue/priority_1", "good.json", llm("t", "x"))
    ended(spool_instance, "complete", "good.json")
    for folder in ("processing", "llm_queue/priority_5"):
        left = tasks / folder
        wait_until(
            lambda left=left: not list(left.iterdir()), what=f"{left} to be empty"
        )


def test_random_tasks_stop_nothing(spool_instance: TestInstance) -> None:
    tasks = spool_instance.work / "tasks"
    chance = random.Random(7)
    names = [f"random-{number:03}.json" for number in range(examples(300))]
    for name in names:
        put(spool_instance, "llm_queue/priority_5", name, random_task(chance))
    put(spool_instance, "llm_queue/priority_1", "good.json", llm("good", "x"))
    ended(spool_instance, "complete", "good.json")
    queue = tasks / "llm_queue" / "priority_5"
    wait_until(lambda: not list(queue.iterdir()), what="all random tasks to be taken")
    folders = ("processing", "complete", "failed")
    for name in names:
        assert any((tasks / folder / name).exists() for folder in folders)


def random_task(chance: random.Random) -> object:
    """A task with one or two values that are not what they should be."""
    task = llm(f"t{chance.random()}", "x")
    for _ in range(chance.randint(1, 2)):
        task[chance.choice([*task, "args", "\x00"])] = chance.choice(ODD_VALUES)
    return task


ODD_VALUES: tuple[object, ...] = (
    None,
    True,
    -1,
    1e308,
    10**400,
    "",
    "\x00",
    "a\nb",
    "x" * 100_000,
    [],
    {},
    [[1]],
    {"a": {"b": None}},
    float("nan"),
    float("inf"),
    "../../etc/passwd",
    "💥\u202e",
)
