"""Which model answers a prompt that names none."""

import math

import pytest

from gpuyard.controller.admission import are_equal
from gpuyard.controller.model_choice import ModelChoice
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.jobspec import JobSpec
from gpuyard.domain.models import ModelSpec
from gpuyard.domain.tasks import spec_from_task

LOADED_S = 0.0


def model(*task_types: str) -> ModelSpec:
    fields = {"command": ["serve", "{port}"], "memory_gb": 8, "task_types": task_types}
    return ModelSpec.model_validate(fields)


def task(task_type: str = "parse", **more) -> JobSpec:
    fields = {"task_id": "t", "task_class": "llm", "prompt": "hello", **more}
    spec, _ = spec_from_task({"task_type": task_type, **fields}, str)
    return spec


def chosen(spec: JobSpec, models, load_s=None, defaults=None) -> str | None:
    times = dict.fromkeys(models, LOADED_S) | (load_s or {})
    return ModelChoice(models, defaults or {}, times.__getitem__).fill_in(spec).model


def test_the_default_of_the_type_comes_first():
    models = {"a": model("parse"), "b": model()}
    assert chosen(task(), models, defaults={"parse": "b"}) == "b"
    assert chosen(task(), models, defaults={"decide": "b"}) == "a"


def test_a_model_that_is_loaded_comes_before_others_that_are_marked():
    models = {"a": model("parse"), "b": model("parse", "decide"), "c": model()}
    assert chosen(task(), models, {"a": 10.0}) == "b"


def test_else_the_one_that_loads_fastest_and_can_be_loaded():
    models = {"a": model("parse"), "b": model("parse"), "c": model("parse")}
    assert chosen(task(), models, {"a": 160.0, "b": 6.0, "c": math.inf}) == "b"


def test_models_without_marks_are_for_the_types_of_no_other():
    models = {"a": model("decide"), "b": model()}
    assert chosen(task("parse"), models) == "b"
    assert chosen(task("decide"), models) == "a"


def test_a_task_that_names_a_model_gets_that_one():
    models = {"a": model("parse"), "b": model("decide")}
    assert chosen(task(model="b"), models, defaults={"parse": "a"}) == "b"


@pytest.mark.parametrize(
    ("spec", "models", "said"),
    [
        (task(model="c"), {"a": model()}, "there is no model 'c'"),
        (task(), {"a": model("decide")}, "no model is for tasks of the type 'parse'"),
        (task(), {}, r"none; add \[models.NAME\]"),
        (JobSpec(prompt="x"), {"a": model(), "b": model()}, "name one of .*: a, b"),
    ],
)
def test_a_prompt_that_no_model_can_answer_is_refused(spec, models, said):
    with pytest.raises(InvalidInputError, match=said) as refused:
        chosen(spec, models)
    assert refused.value.faults[0].field == "model"


def test_a_task_is_the_same_whichever_model_was_chosen_for_it():
    models = {"a": model(), "b": model()}
    choice_a = ModelChoice(models, {}, {"a": 0.0, "b": 1.0}.__getitem__)
    choice_b = ModelChoice(models, {}, {"a": 1.0, "b": 0.0}.__getitem__)
    first = choice_a.fill_in(task()).given_json()
    second = choice_b.fill_in(task()).given_json()
    assert (first["model"], second["model"]) == ("a", "b")
    assert are_equal(first, second)
    named = choice_b.fill_in(task(model="b")).given_json()
    assert not are_equal(first, named)
