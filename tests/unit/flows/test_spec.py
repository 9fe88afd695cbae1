"""What a flow may say, and in which order its steps run."""

from itertools import pairwise
from typing import Any

import pytest

from gpuyard.domain.errors import InvalidInputError
from gpuyard.flows.spec import parse


def step(**more: Any) -> dict[str, Any]:
    return {"command": ["true"], **more}


def test_a_step_needs_what_writes_its_inputs() -> None:
    flow = parse(
        {
            "steps": {
                "report": step(needs=["train"]),
                "train": step(inputs=["clean.csv", "train.py"], outputs=["model"]),
                "clean": step(inputs=["raw.csv"], outputs=["clean.csv"]),
            }
        },
        "folder",
    )
    assert flow.name == "folder"
    assert list(flow.steps) == ["clean", "train", "report"]
    assert flow.steps["train"].needs == ("clean",)
    assert flow.steps["train"].job == {"command": ["true"]}


@pytest.mark.parametrize(
    ("path", "output", "is_read"),
    [
        ("data/*.csv", "data", True),
        ("data/*.csv", "data/clean.csv", True),
        ("data/*.csv", "data/clean.txt", False),
        ("data/part/one.csv", "data/part", True),
        ("data", "data/part/one.csv", True),
        ("**/one.csv", "data/one.csv", True),
        ("data/**", "data", True),
        (".", "data", True),
        ("database", "data", False),
        ("b[1]", "b[1]", True),
        ("model", "models", False),
    ],
)
def test_a_step_needs_what_writes_into_its_inputs(
    path: str, output: str, is_read: bool
) -> None:
    """Else it would read what another run has left, while that is written anew."""
    steps = {"second": step(inputs=[path]), "first": step(outputs=[output])}
    needs = parse({"steps": steps}, "f").steps["second"].needs
    assert needs == (("first",) if is_read else ())


def test_what_a_step_writes_among_its_own_inputs_is_no_circle() -> None:
    alone = {"steps": {"sum": step(inputs=["*.csv"], outputs=["sum.csv"])}}
    assert parse(alone, "f").steps["sum"].needs == ()


def test_a_step_is_carried_as_the_flow_unless_it_says_otherwise() -> None:
    steps = {"far": step(), "near": step(carry=False)}
    flow = parse({"carry": True, "steps": steps}, "f")
    assert [it.carry for it in flow.steps.values()] == [True, False]
    assert not parse({"steps": {"a": step()}}, "f").steps["a"].carry


def test_a_cycle_is_one_error_that_names_its_steps() -> None:
    steps = {
        "a": step(needs=["c"]),
        "b": step(needs=["a"]),
        "c": step(needs=["b"]),
        "d": step(),
    }
    with pytest.raises(InvalidInputError) as raised:
        parse({"steps": steps}, "f")
    (fault,) = raised.value.faults
    assert fault.field == "steps"
    said = fault.fault.removeprefix("need one another in a circle: ").split(" → ")
    assert said[0] == said[-1]
    assert sorted(said[1:]) == ["a", "b", "c"]
    for first, second in pairwise(said):
        assert steps[first]["needs"] == [second], "each needs the next"


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([], "flow: is no table"),
        ({}, "steps: is missing"),
        ({"steps": {}}, "steps: is missing"),
        ({"stepz": {}}, "stepz: is not a field"),
        ({"carry": "yes", "steps": {"a": step()}}, "carry: is not true or false"),
        ({"steps": {"a": step(carry=1)}}, "steps.a.carry"),
        ({"steps": {"a": 3}}, "steps.a: is no table"),
        ({"steps": {"a": {}}}, "steps.a.command: is missing"),
        ({"steps": {"a": {"command": "x y"}}}, "steps.a.command"),
        ({"steps": {"a": step(needs=["b"])}}, "steps.a.needs: names 'b'"),
        ({"steps": {"a": step(needs=["a"])}}, "circle: a → a"),
        ({"steps": {"a": step(outputs=["/etc/x"])}}, "steps.a.outputs"),
        ({"steps": {"a": step(inputs=["../x"])}}, "steps.a.inputs"),
        ({"steps": {"a": step(outputs=["./"])}}, "steps.a.outputs.0: '.' is the"),
        ({"steps": {"a": step(retry_count=-1)}}, "steps.a.retry_count: is -1"),
        ({"steps": {"a": step(colour="red")}}, "steps.a.colour"),
        ({"steps": {"a": step(workdir="/x")}}, "steps.a.workdir: does not belong"),
        (
            {"steps": {"a": step(outputs=["x"]), "b": step(outputs=["./x"])}},
            "steps.b.outputs: has x, which a writes, too",
        ),
    ],
)
def test_bad_input_names_the_step_and_the_field(document: Any, said: str) -> None:
    with pytest.raises(InvalidInputError) as raised:
        parse(document, "f")
    assert said in str(raised.value)
