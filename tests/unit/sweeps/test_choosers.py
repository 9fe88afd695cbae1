"""Which values come next, with Optuna and without."""

from typing import Any

import pytest

from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.jobs import Job
from gpuyard.sweeps.choosers import Chooser, chooser_of
from gpuyard.sweeps.spec import SweepSpec, parse
from gpuyard.sweeps.sweep import PRUNED, Run

PARAMETERS = {"x": "-10.0..10.0", "n": "1..8", "kind": "a,b"}


def spec_of(**more: Any) -> SweepSpec:
    fields = {"name": "s", "metric": "loss", "trials": 25, "parameters": PARAMETERS}
    return parse({**fields, "job": {"command": ["x"]}, **more})


def run_of(
    number: int, parameters: dict[str, str], value: float | None, state: str
) -> Run:
    name = f"s-{number}" + (PRUNED if state == "cancelled" else "")
    job = Job.model_validate(
        {
            "id": "job_1",
            "name": name,
            "kind": "command",
            "state": state,
            "priority": 3,
            "created_at": 0,
        }
    )
    return Run(number, job, parameters, value)


def played(chooser: Chooser, numbers: range) -> list[Run]:
    """Runs one after another; each comes to the square of its x."""
    runs: list[Run] = []
    for number in numbers:
        chosen = chooser.choose(number)
        chooser.begin(number, chosen)
        value = float(chosen["x"]) ** 2
        run = run_of(number, chosen, value, "completed")
        chooser.end(run, [(0, value + 1), (1, value)])
        runs.append(run)
    return runs


def replayed(chooser: Chooser, runs: list[Run]) -> None:
    for run in runs:
        chooser.begin(run.number, run.parameters)
        assert run.value is not None
        chooser.end(run, [(0, run.value + 1), (1, run.value)])


@pytest.mark.parametrize("method", ["random", "tpe", "cmaes", "nsgaii"])
def test_the_same_seed_chooses_the_same(method: str) -> None:
    spec = spec_of(method=method)
    first = played(chooser_of(spec), range(25))
    again = played(chooser_of(spec), range(25))
    other = played(chooser_of(spec.model_copy(update={"seed": 1})), range(25))
    assert [run.parameters for run in first] == [run.parameters for run in again]
    assert [run.parameters for run in first] != [run.parameters for run in other]


@pytest.mark.parametrize("method", ["random", "tpe"])
def test_one_made_anew_from_the_runs_goes_on_as_the_first_would_have(
    method: str,
) -> None:
    spec = spec_of(method=method)
    whole = played(chooser_of(spec), range(25))
    begun = played(chooser_of(spec), range(15))
    second = chooser_of(spec)
    replayed(second, begun)
    rest = played(second, range(15, 25))
    assert [r.parameters for r in begun + rest] == [r.parameters for r in whole]


def test_optuna_learns_from_what_runs_came_to() -> None:
    runs = played(chooser_of(spec_of(method="tpe", trials=40)), range(40))
    last = [abs(float(run.parameters["x"])) for run in runs[-10:]]
    assert sum(last) / 10 < 3, "evenly drawn, it would be 5"


def test_a_method_that_needs_more_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "gpuyard.sweeps.optuna_chooser.find_spec",
        lambda name: None if name == "torch" else name,
    )
    with pytest.raises(InvalidInputError) as raised:
        chooser_of(spec_of(method="gp"))
    assert str(raised.value) == "method: is gp, which needs torch (pip install torch)"


def test_a_run_that_another_command_has_begun_keeps_its_values() -> None:
    chooser = chooser_of(spec_of(method="tpe"))
    chooser.choose(0)
    theirs = {"x": "1.5", "n": "3", "kind": "b"}
    chooser.begin(0, theirs)
    chooser.end(run_of(0, theirs, 2.25, "completed"), [(0, 2.25)])
    chooser.choose(1)


@pytest.mark.parametrize("method", ["grid", "random", "tpe"])
def test_a_pruner_gives_up_what_is_worse_than_the_others(method: str) -> None:
    options = {"n_startup_trials": 1, "n_warmup_steps": 0}
    spec = spec_of(
        method=method,
        parameters={"x": "1,2,3"},
        pruner="median",
        pruner_options=options,
    )
    chooser = chooser_of(spec)
    for number in range(2):
        chooser.begin(number, chosen := chooser.choose(number))
    assert not chooser.should_prune(0, [(0, 1.0), (1, 0.5)])
    chooser.end(run_of(0, chosen, 0.5, "completed"), [(0, 1.0), (1, 0.5)])
    assert not chooser.should_prune(1, [(0, 0.9)])
    assert chooser.should_prune(1, [(0, 0.9), (1, 9.0)])
    chooser.end(run_of(1, chosen, 9.0, "cancelled"), [(0, 0.9), (1, 9.0)])


@pytest.mark.parametrize("state", ["failed", "timed_out", "completed"])
def test_a_run_without_a_value_is_told_as_failed(state: str) -> None:
    chooser = chooser_of(spec_of(method="tpe"))
    chooser.begin(0, chosen := chooser.choose(0))
    run = run_of(0, chosen, None, state)
    assert run.has_failed
    chooser.end(run, [])


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"method": "tp"}, "method: is 'tp' (use grid, random, tpe, gp"),
        ({"pruner": "best"}, "pruner: is 'best' (use median"),
        ({"method": "tpe", "method_options": {"x": 1}}, "method_options: does not"),
        ({"pruner": "median", "pruner_options": {"n": 1}}, "pruner_options: does not"),
    ],
)
def test_what_optuna_does_not_know_is_refused_before_anything_runs(
    more: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidInputError) as raised:
        chooser_of(spec_of(**more))
    assert said in str(raised.value)
