"""`gpuyard run` asks for what a program needs, where nobody has said it."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from gpuyard.cli.recommended import apply, ask
from tests.support.instance import TestInstance, make_instance
from tests.support.nvml import FakeGpus
from tests.support.wait import wait_until
from tests.support.web import http

PROGRAM = """
import torch
from transformers import GPT2LMHeadModel, Trainer, TrainingArguments
model = GPT2LMHeadModel.from_pretrained("{model}").cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-5)
arguments = TrainingArguments(per_device_train_batch_size=4, max_steps=1000)
Trainer(model, arguments, optimizers=(optimizer, None)).train()
"""


@pytest.fixture(scope="module")
def instance() -> Iterator[TestInstance]:
    with make_instance(GPUYARD_NODE__SIMULATE_GPUS="1x24") as made:
        for model in ("gpt2", "gpt2-xl"):
            program = PROGRAM.format(model=model)
            (made.work / f"{model}.py").write_text(program)
        (made.work / "plain.py").write_text("print('no model')\n")
        yield made


def submitted(instance: TestInstance, *words: str, **more: Any) -> tuple[Any, str]:
    """The GPUs that a held job asks for, and what was said of it."""
    done = instance.run("run", "-d", "--hold", *words, **more)
    assert done.returncode == 0, done.stderr
    spec = instance.json("show", done.stdout.strip())["spec"]
    return spec.get("resources", {}).get("gpus"), done.stderr


def test_a_program_gets_what_it_needs_unless_somebody_says_otherwise(
    instance: TestInstance,
) -> None:
    gpus, said = submitted(instance, "gpt2.py")
    assert gpus == {"memory_gb": 16}
    assert "gpt2.py needs 1 GPU with" in said
    assert "AdamW" in said

    gpus, said = submitted(instance, "--gpus", "0", "gpt2.py")
    assert gpus == {"count": 0}
    assert "needs" not in said

    gpus, said = submitted(instance, "gpt2-xl.py")
    assert "which no place here has; it is submitted without" in said
    assert gpus is None

    off = {"GPUYARD_DEFAULTS__RECOMMEND": "false"}
    gpus, said = submitted(instance, "gpt2.py", env=off)
    assert gpus is None
    assert "needs" not in said

    gpus, said = submitted(instance, "plain.py")
    assert gpus is None
    assert "needs" not in said


def test_an_estimate_is_for_what_the_program_needs(instance: TestInstance) -> None:
    found = json.loads(instance.ok("estimate", "--json", "gpt2.py"))
    assert found["recommendation"]["needs"]["gpus"] == 1
    assert instance.ok("estimate", "gpt2.py").startswith("gpt2.py: ")
    plain = json.loads(instance.ok("estimate", "--json", "plain.py"))
    assert plain["recommendation"] is None


def test_a_person_is_asked_before_it_costs_much(instance: TestInstance) -> None:
    body = {"command": ["python3", "gpt2.py"], "workdir": str(instance.work)}
    asked: list[str] = []

    def refuses(question: str) -> bool:
        asked.append(question)
        return False

    with instance.client() as client:
        assert apply(client, body, 1e9, sure=False, confirm=refuses) != body
        with pytest.raises(typer.Abort):
            apply(client, body, -1.0, sure=False, confirm=refuses)
        assert len(asked) == 1
        assert "may cost" in asked[0]
        assert apply(client, body, -1.0, sure=True, confirm=refuses) != body
    assert ask("Who reads no terminal is not asked?")


RUNNING = """
import os
import time

if "GPUYARD_JOB_ID" in os.environ:
    time.sleep(1)  # a shorter run is no benchmark
    while not os.path.exists("measured"):
        time.sleep(0.05)
    print("step 1 loss 1.0", flush=True)
    os._exit(0)
"""


def test_a_measured_run_corrects_the_next_recommendation(fake_gpus: FakeGpus) -> None:
    uuid = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
    fake_gpus.add(uuid, memory_used_mb=20_480)
    settings = {"GPUYARD_NODE__USAGE_S": "0.1"}
    with make_instance(**fake_gpus.env(), **settings) as instance:
        program = RUNNING + PROGRAM.format(model="gpt2")
        (instance.work / "train.py").write_text(program)
        (instance.work / "copy.py").write_text(program + "print(1)\n")
        before = json.loads(instance.ok("recommend", "--json", "train.py"))
        assert before["needs"]["gpu_memory_gb"] == 16
        job_id = instance.ok("run", "-d", "train.py").strip()

        def is_measured() -> bool:
            wanted = {"name": "system/gpu0_memory_mb"}
            with http(instance) as web:
                found = web.get(f"/api/v1/jobs/{job_id}/metrics", params=wanted)
            return bool(found.json()["items"])

        wait_until(is_measured, what="its memory to be measured")
        (instance.work / "measured").touch()
        assert instance.wait(job_id).state == "completed"

        (job,) = instance.json("jobs")["items"]
        said = instance.ok("recommend", "train.py")
        assert f"measured: 20.0 GB in job {job['id'][-8:]}, peak of 1 run" in said
        assert f"in job {job['id'][-8:]}, 1 run" in said
        unmeasured = instance.ok("recommend", "--no-measured", "train.py")
        assert "measured" not in unmeasured
        found = json.loads(instance.ok("estimate", "--json", "train.py"))
        assert found["recommendation"]["needs"]["gpu_memory_gb"] == 24
        held = instance.run("run", "-d", "--hold", "train.py")
        assert "measured: 20.0 GB" in held.stderr
        spec = instance.json("show", held.stdout.strip())["spec"]
        assert spec["resources"]["gpus"] == {"memory_gb": 24}

        measured = instance.json("report", "--benchmarks")
        (size,) = measured["sizes"]
        assert (size["gpu"], size["gpus"], size["runs"]) == ("a100-40gb", 1, 1)
        (line,) = measured["programs"]
        assert line["program"] == "train.py"
        assert line["steps_per_s"] > 0
        table = instance.ok("report", "--benchmarks", "--csv").splitlines()
        assert table[1].startswith("train.py,owner,a100-40gb,1,")
        assert "Medians of 1 job that" in instance.ok("report", "--benchmarks")

        # Another user learns the factor, and not from whom.
        token = instance.json("user", "add", "ben", "--role", "member")["token"]
        as_ben = {"GPUYARD_URL": instance.address().url, "GPUYARD_TOKEN": token}
        taught = instance.ok("recommend", "copy.py", env=as_ben)
        assert "measured: programs with this model, optimiser and batch took" in taught
        assert job["id"][-8:] not in taught
