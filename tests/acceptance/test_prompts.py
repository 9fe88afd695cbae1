"""Prompts as jobs, end to end: they wait in the queue of their model and cost no
process, whatever happens to servers and models.
"""

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.support.instance import TestInstance, make_instance
from tests.support.wait import wait_until

SERVER = Path(__file__).parents[1] / "programs" / "chat" / "server.py"

STEPS = Path(__file__).parents[1] / "programs" / "scripts" / "steps.py"


def model(name: str, *flags: str, **more: object) -> str:
    """A section of gpuyard.toml."""
    words = [sys.executable, str(SERVER), name, "--port", "{port}", *flags]
    fields = {"command": words, "memory_gb": 16, "boot_s": 1, **more}
    return f"[models.{name}]\n" + "".join(
        f"{key} = {json.dumps(value)}\n" for key, value in fields.items()
    )


@contextmanager
def models_instance(gpus: str) -> Iterator[TestInstance]:
    """Model `a` answers one at a time, `many` eight, and `crashing` never starts."""
    with make_instance(GPUYARD_SCHEDULER__RETRY_BASE_S="0.1") as instance:
        instance.home.create()
        sections = [
            model("a"),
            model("many", slots=8),
            model("crashing", "--crash", boot_timeout_s=5),
            f'[scripts.steps]\nfile = "{STEPS}"\ngpus = 1\nboot_s = 0.1\n',
        ]
        instance.home.settings.write_text("\n".join(sections))
        instance.ok("up", "--simulate-gpus", gpus)
        wait_until(lambda: instance.json("gpus")["items"], what="the GPUs")
        yield instance


@pytest.fixture
def instance() -> Iterator[TestInstance]:
    """One GPU, so that a model has one server."""
    with models_instance("1x24") as instance:
        yield instance


def prompts(
    instance: TestInstance, texts: list[str], name: str = "a", **more: object
) -> list[str]:
    """Submit these prompts; their ids."""
    bodies = [{"prompt": text, "model": name, **more} for text in texts]
    with instance.client() as client:
        return [job.id for job in client.submit(bodies)]


def answer(instance: TestInstance, job: str) -> str:
    ended = instance.wait(job)
    assert ended.state == "completed", ended
    return instance.ok("logs", job).strip()


def answers(instance: TestInstance, jobs: list[str]) -> list[str]:
    """What all of these were answered, through one client."""
    with instance.client() as client:
        ended = client.wait_for(*jobs, timeout=90)
        assert {each.state for each in ended} == {"completed"}, ended
        return ["".join(client.job(job).logs()).strip() for job in jobs]


def why(instance: TestInstance, job: str) -> str:
    return str(instance.json("why", job)["summary"])


def post(instance: TestInstance, text: str, **headers: str) -> str:
    """A request of /v1; the answer."""
    address = instance.address()
    body = {"model": "a", "messages": [{"role": "user", "content": text}]}
    said = httpx.post(
        f"{address.url}/v1/chat/completions",
        json=body,
        headers={"Authorization": f"Bearer {address.token}", **headers},
        timeout=60,
    )
    return said.text


def test_a_prompt_runs_on_the_gpu_of_its_model_and_takes_no_process(
    instance: TestInstance,
) -> None:
    (job,) = prompts(instance, ["sleep 3"])
    instance.wait(job, "running")
    agent = psutil.Process(instance.pid("agent"))
    programs = [" ".join(child.cmdline()) for child in agent.children(recursive=True)]
    assert [str(SERVER) in line for line in programs] == [True], programs
    assert answer(instance, job) == "a: sleep 3"
    ended = instance.job(job)
    (attempt,) = ended.attempts
    (replica,) = instance.json("models")["items"][0]["replicas"]
    assert (ended.gpus, attempt.provider) == ([replica["gpu"]], "prompts")
    assert 2.9 < ended.ended_at - ended.started_at < 30
    # The job of the model pays, so that the amounts of all jobs add up to what was spent.
    assert (ended.cost.amount, ended.cost.basis) == (0, "share")
    assert ended.cost.share > 0
    assert "of what its model costs" in instance.ok("show", job)
    with instance.client() as client:
        spent = {each.kind: each.cost.amount for each in client.jobs()}
    assert spent["model"] > 0
    assert spent["llm"] == 0


@pytest.fixture
def two_gpus() -> Iterator[TestInstance]:
    with models_instance("2x24") as instance:
        yield instance


def test_a_batch_for_itself_and_a_hundred_prompts_both_end(
    two_gpus: TestInstance,
) -> None:
    """Neither waits for ever for the other."""
    jobs = prompts(two_gpus, [f"number {n}" for n in range(100)])
    items = two_gpus.work / "in"
    items.mkdir()
    for number in range(61):
        (items / f"{number}.txt").write_text(str(number))
    two_gpus.ok(
        "batch", "submit", "steps", str(items), "--arg", f"log={two_gpus.work}/log"
    )
    (batch,) = two_gpus.json("batch", "list")["items"]
    assert (batch["gpu_mode"], batch["completed"]) == ("exclusive", 61)
    assert answers(two_gpus, jobs) == [f"a: number {number}" for number in range(100)]


@pytest.mark.parametrize("fault", ["garbage 2", "break 2", "429 4", "503 2"])
def test_a_model_that_fails_now_and_then_is_asked_again(
    instance: TestInstance, fault: str
) -> None:
    (job,) = prompts(instance, [f"fault {fault}"])
    assert answer(instance, job) == f"a: fault {fault}"
    assert len(instance.job(job).attempts) == 1


def test_a_prompt_that_the_model_refuses_fails_with_its_words(
    instance: TestInstance,
) -> None:
    (job,) = prompts(instance, ["fault 400 9"])
    ended = instance.wait(job)
    assert (ended.state, ended.reason) == ("failed", "no_answer")
    (attempt,) = instance.job(job).attempts
    assert "a answered with status 400" in attempt.message
    assert "not now" in attempt.message


def test_a_prompt_of_a_model_that_cannot_start_says_so_and_waits(
    instance: TestInstance,
) -> None:
    (job,) = prompts(instance, ["hello"], "crashing")
    wait_until(lambda: "its server ended" in why(instance, job), what="the reason")
    assert instance.job(job).state == "assigned"
    assert "its server ended" in instance.ok("show", job)
    # It only waits, so it keeps no server from stopping.
    assert "1 job left waiting" in instance.ok("down")
    instance.ok("up")
    assert instance.job(job).state in ("queued", "assigned")
    instance.ok("cancel", job)
    assert instance.wait(job).state == "cancelled"


def test_the_time_limit_counts_from_the_answer_and_not_from_the_wait(
    instance: TestInstance,
) -> None:
    first, second, slow = prompts(
        instance, ["sleep 2", "sleep 2.1", "sleep 60"], timeout_s=3.5
    )
    assert answer(instance, first) == "a: sleep 2"
    assert answer(instance, second) == "a: sleep 2.1"
    assert instance.wait(slow).state == "timed_out"


def test_a_cancelled_prompt_leaves_its_line_or_frees_its_place(
    instance: TestInstance,
) -> None:
    running, waiting, last = prompts(instance, ["sleep 60", "never", "last"])
    instance.wait(running, "running")
    instance.ok("cancel", waiting)
    assert instance.wait(waiting).state == "cancelled"
    instance.ok("cancel", running)
    assert instance.wait(running).state == "cancelled"
    assert answer(instance, last) == "a: last"


def test_the_urgent_come_first_whichever_way_they_came(instance: TestInstance) -> None:
    (first,) = prompts(instance, ["sleep 60"])
    instance.wait(first, "running")
    (usual,) = prompts(instance, ["usual"])
    (urgent,) = prompts(instance, ["urgent"], priority=5)
    with ThreadPoolExecutor() as pool:
        header = {"X-Gpuyard-Priority": "1"}
        asking = pool.submit(post, instance, "by hand", **header)
        wait_until(
            lambda: instance.json("models")["items"][0]["waiting"] == 3,
            what="all to wait",
        )
        assert why(instance, usual).startswith("It waits for the model a: 1 before it")
        instance.ok("cancel", first)
        said = asking.result(60)
    assert "by hand" in said
    assert answer(instance, urgent) == "a: urgent"
    assert answer(instance, usual) == "a: usual"
    ends = [instance.job(job).started_at for job in (urgent, usual)]
    assert ends == sorted(ends)
    assert "X-Gpuyard-Priority is '9'" in post(
        instance, "x", **{"X-Gpuyard-Priority": "9"}
    )


def test_prompts_outlive_kills_of_the_server_and_are_answered_once(
    instance: TestInstance,
) -> None:
    jobs = prompts(instance, [f"sleep 0.{n % 3} {n}" for n in range(40)], "many")
    for wanted in (5, 20):
        with instance.client() as client:
            wait_until(
                lambda: _completed(client, jobs) >= wanted,  # noqa: B023
                what="some answers",
            )
        instance.kill("server")
        instance.ok("up")
    expected = [f"many: sleep 0.{number % 3} {number}" for number in range(40)]
    assert answers(instance, jobs) == expected
    with instance.client() as client:
        for job in jobs:
            codes = [attempt.exit_code for attempt in client.job(job).info.attempts]
            assert codes.count(0) == 1


def _completed(client: Any, jobs: list[str]) -> int:
    found = client.jobs(state="completed", limit=1000)
    return len({job.id for job in found} & set(jobs))


def test_gpuyard_llm_says_what_it_waits_for(instance: TestInstance) -> None:
    (busy,) = prompts(instance, ["sleep 60"])
    instance.wait(busy, "running")
    asking = instance.popen("llm", "a", "hello")
    assert asking.stderr
    assert asking.stderr.readline() == (
        "gpuyard: waiting: a answers 1 at once, and all are taken\n"
    )
    instance.ok("cancel", busy)
    assert asking.communicate(timeout=60)[0] == "hello\n"
