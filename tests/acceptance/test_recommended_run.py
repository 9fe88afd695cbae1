"""`gpuyard run` asks for what a program needs, where nobody has said it."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from gpuyard.cli.recommended import apply, ask
from tests.support.instance import TestInstance, make_instance

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
