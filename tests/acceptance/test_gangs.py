"""Models over several GPUs, among models and scripts on one: simulated GPUs, real
servers.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.acceptance.test_batches import ended, settings, submit, write
from tests.acceptance.test_models import ask, models, openai, said
from tests.acceptance.test_sharing import PATHS, instance_of, script, section, states
from tests.support.instance import TestInstance
from tests.support.wait import wait_until


@pytest.fixture
def gangs() -> Iterator[TestInstance]:
    """Two GPUs; a and b need one each, the wide one both, and another more than there
    are.
    """
    sections = [section(name, memory_gb=20, boot_s=0.1) for name in "ab"]
    sections += [
        section("wide", memory_gb=20, gpus=2, boot_s=0.1),
        section("wider", memory_gb=10, gpus=3),
    ]
    with instance_of("2x24", *sections) as instance:
        yield instance


def gpu_states(instance: TestInstance) -> list[str]:
    return sorted(gpu["state"] for gpu in instance.json("gpus")["items"])


def fail(instance: TestInstance, *words: str) -> str:
    done = instance.run(*words)
    assert done.returncode != 0
    return done.stderr


def replica(instance: TestInstance, name: str) -> dict[str, Any]:
    (found,) = models(instance)[name]["replicas"]
    return found


def test_a_model_has_all_its_gpus_and_they_say_so(gangs: TestInstance) -> None:
    assert said(ask(gangs, "wide")) == "wide: hello"
    there = replica(gangs, "wide")
    assert len(set(there["gpus"])) == 2
    line = next(
        line
        for line in gangs.ok("logs", there["job_id"]).splitlines()
        if line.startswith("on ")
    )
    assert sorted(line[3:].split(",")) == sorted(there["gpus"]), "its server sees both"
    gpus = gangs.json("gpus")["items"]
    assert [(gpu["state"], gpu["model"], gpu["paired_with"]) for gpu in gpus] == [
        ("llm_ready", "wide", [1]),
        ("llm_ready", "wide", [0]),
    ]
    assert "paired w/0" in gangs.ok("top", "--once")
    assert gangs.wait(script(gangs)).state == "completed", "it makes room as a whole"
    assert states(gangs, "wide") == ["absent"]


def test_two_small_ones_make_room_for_a_wide_one_and_it_for_them(
    gangs: TestInstance,
) -> None:
    for _ in range(2):
        assert [said(ask(gangs, name)) for name in "ab"] == ["a: hello", "b: hello"]
        assert said(ask(gangs, "wide")) == "wide: hello"
        assert states(gangs, *"ab", "wide") == ["absent", "absent", "ready"]


def busy(instance: TestInstance) -> Path:
    """A script is at work until this file is there."""
    gate = instance.work / "go"
    first = script(instance, "sh", "-c", f"while [ ! -e {gate} ]; do sleep 0.05; done")
    instance.wait(first, "running")
    return gate


def test_what_is_freed_is_kept_until_it_has_all(gangs: TestInstance) -> None:
    """A script is at work on one GPU; the other stays empty, though there are others
    for it, also after a crash.
    """
    gate = busy(gangs)
    gangs.ok("models", "pin", "wide")
    wait_until(
        lambda: states(gangs, "wide") == ["booting"], what="it to get its places"
    )
    others = [script(gangs) for _ in range(3)]
    gangs.kill("server")
    gangs.ok("up")
    wait_until(
        lambda: gpu_states(gangs) == ["booting_llm", "script_busy"],
        what="the agent to be there again",
    )
    assert {gangs.job(job).state for job in others} == {"queued"}
    assert gangs.json("show", replica(gangs, "wide")["job_id"])["state"] == "queued"
    gate.touch()
    assert said(ask(gangs, "wide")) == "wide: hello"
    gangs.ok("models", "unload", "wide")
    assert {gangs.wait(job).state for job in others} == {"completed"}


def test_nothing_is_kept_for_a_model_that_nobody_waits_for_any_more(
    gangs: TestInstance,
) -> None:
    gate = busy(gangs)
    with pytest.raises(httpx.ReadTimeout), openai(gangs) as client:
        body = {"model": "wide", "messages": [{"role": "user", "content": "hello"}]}
        client.post("/chat/completions", json=body, timeout=4)
    assert gangs.wait(script(gangs)).state == "completed", "on the GPU that was kept"
    wait_until(lambda: states(gangs, "wide") == ["absent"], what="it to be let go")
    assert models(gangs)["wide"]["problem"] is None
    gate.touch()
    assert said(ask(gangs, "wide")) == "wide: hello"


def test_more_gpus_than_a_machine_has_are_refused(gangs: TestInstance) -> None:
    answer = ask(gangs, "wider")
    assert answer.status_code == 503
    assert "needs 3 GPUs with 10 GB on one machine; the most is 2" in answer.text
    assert said(ask(gangs, "a")) == "a: hello"
    assert said(ask(gangs, "b")) == "b: hello"
    refused = fail(gangs, "models", "load", "wide")
    assert "a is idle on GPU" in refused and "b is idle on GPU" in refused


def test_pinned_it_comes_before_idle_ones_and_stays(gangs: TestInstance) -> None:
    assert [said(ask(gangs, name)) for name in "ab"] == ["a: hello", "b: hello"]
    gangs.ok("models", "pin", "wide")
    wait_until(lambda: states(gangs, "wide") == ["ready"], what="it to be loaded")
    waiting = script(gangs)
    assert said(ask(gangs, "wide")) == "wide: hello"
    assert gangs.job(waiting).state == "queued"
    gangs.ok("models", "unload", "wide")
    assert gangs.wait(waiting).state == "completed"


def test_an_exclusive_batch_brings_it_back_on_all_its_gpus() -> None:
    wide = section("wide", memory_gb=20, gpus=2, boot_s=1)
    with instance_of("3x24", settings(models="a"), wide) as instance:
        assert [said(ask(instance, name)) for name in ("wide", "a")] == [
            "wide: hello",
            "a: hello",
        ]
        before = replica(instance, "wide")["gpus"]
        source = write(instance.work / "in", **{f"i{n}": str(n) for n in range(7)})
        batch = submit(
            instance, source, "--exclusive", "--arg", f"gate={instance.work}/go"
        )
        wait_until(
            lambda: states(instance, "wide", "a") == ["absent", "absent"],
            what="the models to be gone",
        )
        Path(instance.work / "go").touch()
        assert ended(instance, batch)["completed"] == 7
        assert states(instance, "wide", "a") == ["ready", "ready"]
        assert replica(instance, "wide")["gpus"] == before


def test_a_gang_cannot_sleep() -> None:
    with instance_of("1x24") as instance:
        instance.ok("down")
        instance.home.settings.write_text(section("m", memory_gb=8, gpus=2, **PATHS))
        assert "models.m.gpus: is more than one for a model that sleeps" in fail(
            instance, "up", "--simulate-gpus", "2x24"
        )
