"""What a sweep is to try."""

from typing import Any

import pytest

from gpuyard.domain.errors import InvalidInputError
from gpuyard.sweeps.spec import SweepSpec, parse

FIELDS: dict[str, Any] = {
    "name": "s",
    "metric": "loss",
    "parameters": {"lr": "0.1,0.2,0.3"},
    "job": {"command": ["train"]},
}


def test_without_a_number_of_trials_it_is_the_whole_grid() -> None:
    spec = parse(FIELDS)
    assert (spec.method, spec.count()) == ("grid", 3)
    assert parse({**FIELDS, "trials": 2, "method": "grid"}).count() == 2


def test_with_a_number_of_trials_values_are_drawn() -> None:
    spec = parse({**FIELDS, "trials": 20})
    assert (spec.method, spec.count()) == ("random", 20)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"method": "random"}, "trials: is missing, and random has no end"),
        ({"parameters": {}}, "parameters: is empty"),
        ({"parameters": {"a b": "1"}}, "'a b'"),
        ({"parameters": {"seed": "1"}}, "'seed'"),
        ({"goal": "max"}, "goal"),
        ({"paralel": 2}, "did you mean parallel"),
        ({"parallel": 0}, "parallel"),
        ({"name": "x" * 151}, "name"),
    ],
)
def test_bad_input_names_the_field(more: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInputError) as raised:
        parse({**FIELDS, **more})
    assert said in str(raised.value)


def test_it_is_the_same_after_it_was_stored() -> None:
    spec = parse({**FIELDS, "trials": 4, "pruner": "median"})
    assert SweepSpec.model_validate_json(spec.model_dump_json()) == spec


def test_each_run_has_a_seed_of_its_own_that_stays() -> None:
    spec = parse(FIELDS)
    seeds = [spec.seed_of(number) for number in range(100)]
    assert len(set(seeds)) == 100
    assert seeds == [parse(FIELDS).seed_of(number) for number in range(100)]
