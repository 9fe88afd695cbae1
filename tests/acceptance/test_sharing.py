"""Several models on one GPU, and models that sleep, while scripts want the same GPU:
simulated GPUs, real servers.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.acceptance.test_models import SERVER, ask, models, said
from tests.support.instance import TestInstance, make_instance
from tests.support.wait import wait_until

PATHS = {"sleep": "/sleep", "wake": "/wake_up", "asleep": "/is_sleeping", "wake_s": 1}


def section(name: str, *flags: str, **more: object) -> str:
    words = [sys.executable, str(SERVER), name, "--port", "{port}", *flags]
    fields = {"command": words, "boot_s": 1, **more}
    return f"[models.{name}]\n" + "".join(
        f"{key} = {json.dumps(value)}\n" for key, value in fields.items()
    )


@contextmanager
def instance_of(gpus: str, *sections: str) -> Iterator[TestInstance]:
    with make_instance(GPUYARD_SCHEDULER__RETRY_BASE_S="0.1") as instance:
        instance.home.create()
        instance.home.settings.write_text("\n".join(sections))
        instance.ok("up", "--simulate-gpus", gpus)
        wait_until(lambda: instance.json("gpus")["items"], what="the GPUs")
        yield instance


@pytest.fixture
def shared() -> Iterator[TestInstance]:
    """One GPU of 24 GB, three models of 6 and one of 20."""
    sections = [section(name, memory_gb=6) for name in "abc"]
    with instance_of("1x24", *sections, section("large", memory_gb=20)) as instance:
        yield instance


@pytest.fixture
def sleepy() -> Iterator[TestInstance]:
    """One GPU, two models that sleep and one that only says so."""
    sections = [section(name, memory_gb=20, **PATHS) for name in "ab"]
    with instance_of(
        "1x24", *sections, section("restless", "--awake", memory_gb=20, **PATHS)
    ) as instance:
        yield instance


def gpu(instance: TestInstance) -> dict[str, Any]:
    return instance.json("gpus")["items"][0]


def states(instance: TestInstance, *names: str) -> list[str]:
    found = models(instance)
    return [found[name]["state"] for name in names]


def script(instance: TestInstance, *command: str) -> str:
    return instance.submit(
        list(command) or ["true"], resources={"gpus": 1, "cpus": 0.1}
    )


# --- several on one GPU ---


def test_models_share_a_gpu_as_far_as_its_memory_goes(shared: TestInstance) -> None:
    for name in "abc":
        assert said(ask(shared, name)) == f"{name}: hello"
    assert states(shared, *"abc") == ["ready"] * 3
    assert sorted(gpu(shared)["models"]) == ["a", "b", "c"]
    assert said(ask(shared, "large")) == "large: hello", "all three make room for it"
    assert states(shared, *"abc", "large") == ["absent"] * 3 + ["ready"]


def test_a_script_gets_the_gpu_when_all_have_left_it(shared: TestInstance) -> None:
    assert [said(ask(shared, name)) for name in "ab"] == ["a: hello", "b: hello"]
    job = shared.wait(script(shared, "sh", "-c", "echo $CUDA_VISIBLE_DEVICES"))
    assert (job.state, len(job.gpus)) == ("completed", 1)
    assert states(shared, *"ab") == ["absent", "absent"]
    assert [said(ask(shared, name)) for name in "ba"] == ["b: hello", "a: hello"]


def test_the_gpu_stays_booked_when_the_one_who_booked_it_dies(
    shared: TestInstance,
) -> None:
    """A script must not come onto a GPU on which a model still lives."""
    for name in "ab":
        shared.ok("models", "pin", name)
    wait_until(
        lambda: states(shared, *"ab") == ["ready", "ready"], what="both to be loaded"
    )
    waiting = script(shared)
    holder = shared.json("show", models(shared)["a"]["replicas"][0]["job_id"])
    rider = shared.json("show", models(shared)["b"]["replicas"][0]["job_id"])
    first, other = ("a", "b") if holder["gpus"] else ("b", "a")
    assert [bool(holder["gpus"]), bool(rider["gpus"])].count(True) == 1, (
        "one of them books it"
    )
    file = shared.home.root / "gpu_state.json"

    def is_ready() -> bool:
        if not file.exists():
            return False
        return json.loads(file.read_text())["gpus"]["0"]["state"] == "llm_ready"

    wait_until(is_ready, what="the file to say so")
    replica = models(shared)[first]["replicas"][0]["job_id"]
    os.kill(
        next(g["pid"] for g in _pids(shared) if g["job_id"] == replica), signal.SIGKILL
    )

    def again() -> bool:
        replicas = models(shared)[first]["replicas"]
        return bool(replicas) and replicas[0]["job_id"] != replica

    wait_until(again, what="it to be loaded again")
    wait_until(
        lambda: states(shared, *"ab") == ["ready", "ready"], what="both to be loaded"
    )
    assert said(ask(shared, other)) == f"{other}: hello"
    assert shared.job(waiting).state == "queued"
    booked = [
        bool(shared.json("show", models(shared)[n]["replicas"][0]["job_id"])["gpus"])
        for n in "ab"
    ]
    assert booked.count(True) == 1
    for name in "ab":
        shared.ok("models", "unload", name)
    assert shared.wait(waiting).state == "completed"


def _pids(instance: TestInstance) -> list[dict[str, Any]]:
    """The processes of all replicas, by the jobs that they are."""
    import psutil

    found: list[dict[str, Any]] = []
    ports = {
        str(r["port"]): r["job_id"]
        for model in models(instance).values()
        for r in model["replicas"]
    }
    for process in psutil.process_iter(["cmdline", "pid"]):
        words = process.info["cmdline"] or []
        if str(SERVER) in words and words[-1] in ports:
            found.append({"pid": process.info["pid"], "job_id": ports[words[-1]]})
    return found


# --- sleep ---


def test_a_model_sleeps_while_a_script_has_its_gpu_and_wakes_when_it_is_asked(
    sleepy: TestInstance,
) -> None:
    assert said(ask(sleepy, "a")) == "a: hello"
    server = models(sleepy)["a"]["replicas"][0]["job_id"]
    job = sleepy.submit(["sleep", "60"], resources={"gpus": 1, "cpus": 0.1})
    sleepy.wait(job, "running")
    assert states(sleepy, "a") == ["asleep"]
    assert gpu(sleepy)["state"] == "script_busy"
    sleepy.ok("cancel", job)
    wait_until(
        lambda: gpu(sleepy)["state"] == "asleep", what="the GPU to be free again"
    )
    assert said(ask(sleepy, "a")) == "a: hello"
    assert models(sleepy)["a"]["replicas"][0]["job_id"] == server, (
        "it is the same server"
    )
    assert sleepy.json("show", server)["gpus"], "and books its GPU again"


def test_two_that_sleep_take_turns_on_one_gpu(sleepy: TestInstance) -> None:
    for _ in range(2):
        assert [said(ask(sleepy, name)) for name in "ab"] == ["a: hello", "b: hello"]
    assert states(sleepy, *"ab") == ["asleep", "ready"]
    kinds = [
        event["kind"]
        for event in sleepy.json("events")["items"]
        if event["kind"] == "attempt.intended"
    ]
    assert len(kinds) == 2, "each was booted once"


def test_a_killed_server_finds_who_sleeps(sleepy: TestInstance) -> None:
    assert [said(ask(sleepy, name)) for name in "ab"] == ["a: hello", "b: hello"]
    sleepy.kill("server")
    sleepy.ok("up")
    wait_until(
        lambda: states(sleepy, *"ab") == ["asleep", "ready"], what="both to be found"
    )
    assert sleepy.wait(script(sleepy)).state == "completed"
    assert said(ask(sleepy, "a")) == "a: hello"


def test_one_that_does_not_sleep_when_told_to_is_ended(sleepy: TestInstance) -> None:
    assert said(ask(sleepy, "restless")) == "restless: hello"
    assert sleepy.wait(script(sleepy)).state == "completed"
    assert "did not do it" in str(models(sleepy)["restless"]["problem"])


def test_unloaded_by_hand_it_is_gone(sleepy: TestInstance) -> None:
    assert said(ask(sleepy, "a")) == "a: hello"
    assert said(ask(sleepy, "b")) == "b: hello"
    for name in "ab":
        sleepy.ok("models", "unload", name)
    wait_until(
        lambda: states(sleepy, *"ab") == ["absent", "absent"], what="both to be gone"
    )
    wait_until(lambda: gpu(sleepy)["state"] == "idle", what="the GPU to be free")


def test_ollama_lets_go_of_its_model_and_takes_it_up_again() -> None:
    server = SERVER.parents[1] / "ollama" / "ollama.py"
    words = {
        "engine": "ollama",
        "source": "qwen",
        "memory_gb": 20,
        "boot_s": 1,
        "sleep_level": 1,
        "wake_s": 1,
    }
    with make_instance(GPUYARD_SCHEDULER__RETRY_BASE_S="0.1") as instance:
        program = instance.work / "ollama"
        program.write_text(
            f"#!/bin/sh\n[ $1 = serve ] && exec {sys.executable} {server}\n"
        )
        program.chmod(0o755)
        fields = {**words, "program": str(program)}
        instance.home.create()
        instance.home.settings.write_text(
            "[models.q]\n"
            + "".join(f"{k} = {json.dumps(v)}\n" for k, v in fields.items())
        )
        instance.ok("up", "--simulate-gpus", "1x24")
        wait_until(lambda: instance.json("gpus")["items"], what="the GPU")
        assert said(ask(instance, "q")) == "qwen: hello"
        server_job = models(instance)["q"]["replicas"][0]["job_id"]
        waiting = instance.submit(["sleep", "60"], resources={"gpus": 1, "cpus": 0.1})
        instance.wait(waiting, "running")
        assert states(instance, "q") == ["asleep"]
        instance.ok("cancel", waiting)
        assert said(ask(instance, "q")) == "qwen: hello"
        assert models(instance)["q"]["replicas"][0]["job_id"] == server_job, (
            "it is the same server"
        )
