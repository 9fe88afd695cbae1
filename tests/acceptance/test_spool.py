"""Tasks as files: taken up, moved along, and brought back with their results."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.instance import TestInstance, make_instance
from tests.support.wait import wait_until

CHAT = Path(__file__).parents[1] / "programs" / "chat" / "server.py"


COUNT = """
def load(args):
    def run(args, folder, progress):
        print("counting", end="", flush=True)
        return {"words": len(args["text"].split())}
    return run
"""


@pytest.fixture
def spool_instance() -> Iterator[TestInstance]:
    """An instance with a simulated GPU, a model for most types of tasks, another for
    decisions, a script and a spool in its work folder.
    """
    with make_instance(GPUYARD_SCHEDULER__RETRY_BASE_S="0.1") as instance:
        instance.home.create()
        words = json.dumps([sys.executable, str(CHAT), "toy", "--port", "{port}"])
        script = instance.work / "count.py"
        script.write_text(COUNT)
        model = f"command = {words}\nmemory_gb = 1\nboot_s = 1\n"
        instance.home.settings.write_text(
            f'[spool]\npath = "{instance.work}/tasks"\n[models.toy]\n{model}'
            f'[models.judge]\n{model}task_types = ["decide"]\n'
            f'[scripts.count]\nfile = "{script}"\ngpus = 1\n'
        )
        instance.ok("up", "--simulate-gpus", "1x24")
        wait_until(
            lambda: (instance.work / "tasks" / "failed").is_dir(),
            what="the spool's folders",
        )
        yield instance


def put(instance: TestInstance, folder: str, name: str, task: object) -> None:
    """Move a file into a queue."""
    text = task if isinstance(task, str) else json.dumps(task)
    draft = instance.work / name
    draft.write_text(text)
    draft.rename(instance.work / "tasks" / folder / name)


def ended(instance: TestInstance, folder: str, name: str) -> Path:
    path = instance.work / "tasks" / folder / name
    wait_until(path.exists, what=f"{name} in {folder}/")
    return path


def llm(task_id: str, prompt: str, **more: object) -> dict[str, object]:
    return {
        "task_id": task_id,
        "task_class": "llm",
        "task_type": "generate",
        "prompt": prompt,
        **more,
    }


def result(path: Path) -> Any:
    return json.loads(path.with_suffix(".result.json").read_text())


def test_tasks_of_both_classes_come_back_with_their_results(
    spool_instance: TestInstance,
) -> None:
    script = spool_instance.work / "embed.sh"
    script.write_text("echo embedded $*\n")
    put(spool_instance, "llm_queue/priority_3", "one.json", llm("t-1", "hello"))
    put(
        spool_instance,
        "script_queue/priority_5",
        "two.json",
        {
            "task_id": "t-2",
            "task_class": "script",
            "task_type": "embed",
            "script": str(script),
            "script_args": {"size": 768},
            "gpu_requirement": "none",
        },
    )
    put(
        spool_instance,
        "script_queue/priority_5",
        "three.json",
        {
            "task_id": "t-3",
            "task_class": "script",
            "task_type": "process",
            "script": "count",
            "script_args": {"text": "one two"},
            "gpu_requirement": "0",
        },
    )
    long = "x" * 10_000_000
    put(spool_instance, "llm_queue/priority_3", "long.json", llm("t-4", long))
    first = ended(spool_instance, "complete", "one.json")
    second = ended(spool_instance, "complete", "two.json")
    third = ended(spool_instance, "complete", "three.json")
    # A registered script's result, and not what it wrote.
    counted = result(third)
    assert (counted["task_id"], counted["output"]) == ("t-3", {"words": 2})
    assert counted.keys() == {"task_id", "output", "duration"}
    task = json.loads(third.read_text())
    assert (task["gpu_requirement"], task["assigned_gpu"]) == ("0", 0)
    assert task["assigned_gpu_uuid"] == "GPU-simulated-0"
    assert task["created_at"] <= task["started_at"] <= task["completed_at"]
    assert (result(first)["task_id"], result(first)["output"]) == (
        "t-1",
        "toy: hello\n",
    )
    fourth = ended(spool_instance, "complete", "long.json")
    # A result holds the last ten megabytes of an output.
    assert result(fourth)["output"].rstrip("\n") == long[:-1]
    assert result(second)["output"] == "embedded --size 768\n"
    assert result(second)["duration"] >= 0
    prompt = json.loads(first.read_text())
    assert (prompt["status"], prompt["assigned_gpu"]) == ("complete", 0)
    # The folder's, since the task names none.
    assert spool_instance.json("show", "t-2")["priority"] == 5
    assert not list((spool_instance.work / "tasks" / "processing").iterdir())


@pytest.mark.parametrize(
    ("folder", "task", "said"),
    [
        ("llm_queue/priority_1", "[1, 2", "is not JSON"),
        ("llm_queue/priority_1", "[1, 2]", "is no task"),
        (
            "llm_queue/priority_1",
            llm("t", "x", task_type="embed"),
            "'embed' is no type of class llm",
        ),
        (
            "script_queue/priority_1",
            llm("t", "x"),
            "is 'llm' in the folder of script tasks",
        ),
        ("llm_queue/priority_1", llm("t", "x", priority=9), "priority"),
    ],
)
def test_what_is_no_task_goes_to_failed_with_the_reason(
    spool_instance: TestInstance, folder: str, task: object, said: str
) -> None:
    put(spool_instance, folder, "bad.json", task)
    path = ended(spool_instance, "failed", "bad.json")
    assert said in path.with_suffix(".reason.txt").read_text()


def test_a_task_that_fails_says_so_with_its_output(
    spool_instance: TestInstance,
) -> None:
    script = spool_instance.work / "broken.sh"
    script.write_text("echo no such video; exit 3\n")
    put(
        spool_instance,
        "script_queue/priority_3",
        "bad.json",
        {
            "task_id": "t-3",
            "task_class": "script",
            "task_type": "process",
            "script": str(script),
        },
    )
    path = ended(spool_instance, "failed", "bad.json")
    assert (result(path)["output"], result(path)["reason"]) == (
        "no such video\n",
        "exit_code",
    )
    assert json.loads(path.read_text())["status"] == "failed"


def test_a_killed_server_finds_the_task_again_and_runs_it_once(
    spool_instance: TestInstance,
) -> None:
    script = spool_instance.work / "once.sh"
    script.write_text(f"echo ran >> {spool_instance.work}/witness; sleep 1\n")
    for number in range(5):
        put(
            spool_instance,
            "script_queue/priority_3",
            f"n{number}.json",
            {
                "task_id": f"n-{number}",
                "task_class": "script",
                "task_type": "process",
                "script": str(script),
                "gpu_requirement": "none",
            },
        )
    spool_instance.kill("server")
    spool_instance.ok("up")
    for number in range(5):
        ended(spool_instance, "complete", f"n{number}.json")
    assert (spool_instance.work / "witness").read_text().count("ran") == 5


# `make soak`: 10,000.
FILES = int(os.environ.get("GPUYARD_SPOOL_FILES", "50"))


@pytest.mark.timeout(1800)
def test_many_files_at_once_all_come_back_and_stop_nothing(
    spool_instance: TestInstance,
) -> None:
    """Prompts and scripts in turn; somebody asks meanwhile."""
    tasks = spool_instance.work / "tasks"
    names = [f"{number:05}.json" for number in range(FILES)]
    for number, name in enumerate(names):
        if number % 2:
            put(spool_instance, "llm_queue/priority_3", name, llm(name, f"n{number}"))
            continue
        script = {
            "task_id": name,
            "task_class": "script",
            "task_type": "process",
            "script": "/bin/true",
            "gpu_requirement": "none",
        }
        put(spool_instance, "script_queue/priority_3", name, script)

    def is_over() -> bool:
        spool_instance.json("gpus")
        return len(list((tasks / "complete").glob("*.result.json"))) == FILES

    wait_until(is_over, 60 + FILES * 0.15, "all of them")
    assert {path.name for path in (tasks / "complete").iterdir()} == {
        *names,
        *(f"{number:05}.result.json" for number in range(FILES)),
    }
    last = tasks / "complete" / names[-1]
    assert result(last)["output"] == f"toy: n{FILES - 1}\n"
    for folder in ("processing", "failed"):
        assert not list((tasks / folder).iterdir())
