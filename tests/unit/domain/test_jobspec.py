"""JobSpec: what is accepted, what it becomes, and that it survives being written
down.
"""

import json
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.jobspec import (
    CheckpointSpec,
    GpuRequest,
    JobKind,
    JobSpec,
    Resources,
)
from gpuyard.domain.shape import Placement, Shape
from gpuyard.domain.spec_values import STORED
from gpuyard.domain.validation import parse_spec

printable = st.text(st.characters(categories=("L", "N", "P")), min_size=1, max_size=20)
names = st.text(string.ascii_letters + string.digits + "-_. é", min_size=1, max_size=30)
numbers = st.floats(min_value=0.01, max_value=1e6)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
    ),
    max_leaves=10,
)


def object_of(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


gpus = object_of(
    count=st.integers(0, 1024),
    memory_gb=numbers | st.sampled_from(["16GB", "512Mi"]),
    compute_capability=st.sampled_from(["7.5", "8", 9.0, 10]),
    gpu_class=st.sampled_from(["A100", "t4", "NVIDIA L4"]),
)
specs = object_of(
    name=names,
    model=names,
    image=names,
    workdir=printable,
    tier=names,
    project=names,
    provider=names,
    resources=object_of(
        cpus=st.floats(0.1, 1000),
        memory_gb=numbers,
        nodes=st.integers(1, 99),
        gpus=gpus,
    ),
    environment=st.dictionaries(
        st.from_regex(r"[A-F_][A-Z0-9_]{0,9}", fullmatch=True), printable, max_size=3
    ),
    volumes=st.dictionaries(printable, printable, max_size=2),
    timeout_s=numbers | st.just("2h"),
    retry_count=st.integers(0, 100),
    max_silence_s=numbers,
    priority=st.integers(1, 5),
    deadline=st.floats(1, 4e9) | st.just("2026-12-01T18:00+01:00"),
    spot=st.booleans(),
    depends_on=st.lists(names, max_size=3),
    preemptible=st.booleans(),
    max_price=st.decimals(1, 9, places=3),
    allowed=object_of(
        providers=st.lists(names, max_size=2),
        regions=st.lists(names, max_size=2),
        quarantined=st.booleans(),
    ),
    provider_options=st.dictionaries(printable, json_values, max_size=2),
    labels=st.dictionaries(names, names),
    checkpoint=object_of(
        path=names.map("ckpt-{}".format),
        grace_s=st.floats(0, 1000),
        signal=st.sampled_from(["USR1", "SIGINT", "hup"]),
        resume_args=st.lists(printable, max_size=2),
    ),
    estimated_duration_s=numbers,
    idempotency_key=names,
)
work = (
    st.fixed_dictionaries(
        {"command": st.lists(printable, min_size=1, max_size=4)},
        optional={"workspace": names, "stdin": st.text()},
    )
    | st.fixed_dictionaries(
        {"script": names, "args": st.dictionaries(printable, json_values, max_size=2)}
    )
    | st.fixed_dictionaries({"prompt": printable})
)


@given(specs, work)
def test_a_spec_survives_the_ledger(body, what):
    spec = parse_spec(body | what)
    written = json.loads(
        json.dumps(spec.model_dump(mode="json", exclude_defaults=True))
    )
    assert parse_spec(written) == spec
    assert JobSpec.model_validate(written) == spec


@given(specs, work)
def test_a_shape_and_a_placement_survive_the_ledger(body, what):
    shape = Shape.of(parse_spec(body | what))
    assert Shape.from_row(json.loads(json.dumps(shape.to_row()))) is shape
    placement = Placement("node", shape.gpu_uuids, shape.cpus, shape.memory_gb)
    assert Placement.from_row(json.loads(json.dumps(placement.to_row()))) == placement


FIELDS = sorted(
    {
        f
        for part in (JobSpec, Resources, GpuRequest, CheckpointSpec)
        for f in part.model_fields
    }
)


def anything(depth: int = 3) -> st.SearchStrategy[Any]:
    """Any JSON value, but often with names that mean something here."""
    if not depth:
        return json_values
    keys = st.sampled_from(FIELDS) | st.text(max_size=5)
    return (
        json_values
        | st.dictionaries(keys, anything(depth - 1), max_size=6)
        | st.lists(anything(depth - 1), max_size=2)
    )


@given(anything())
def test_any_json_is_a_spec_or_an_explained_error(body):
    try:
        spec = parse_spec(body)
    except InvalidInputError as error:
        assert error.faults
        assert all(fault.field and fault.fault for fault in error.faults)
    else:
        json.dumps(spec.model_dump(mode="json"))
        Shape.of(spec)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"command": ["a"]}, JobKind.COMMAND),
        ({"script": "a"}, JobKind.SCRIPT),
        ({"prompt": "a"}, JobKind.LLM),
    ],
)
def test_the_kind_follows_from_the_work(body, kind):
    assert parse_spec(body).kind is kind
    assert parse_spec(body | {"kind": kind.value}).kind is kind


def test_defaults_are_what_the_contract_says():
    spec = parse_spec({"command": ["true"]})
    assert (
        spec.priority,
        spec.retry_count,
        spec.timeout_s,
        spec.spot,
        spec.preemptible,
    ) == (3, 0, None, False, False)
    assert spec.resources.nodes == 1
    assert spec.resources.gpus.count == 0
    assert Shape.of(spec) == Shape(cpus=1.0, portable=True)


def test_a_live_command_stays_where_the_folders_of_the_server_are():
    assert not Shape.of(parse_spec({"command": ["true"], "live": True})).portable


def test_asking_for_gpus_without_a_count_asks_for_one():
    assert (
        parse_spec(
            {"command": ["a"], "resources": {"gpus": {"memory_gb": "16GB"}}}
        ).resources.gpus.count
        == 1
    )


@pytest.mark.parametrize("part", [0.25, "1/4", "0.5", " 1 / 2 ", 1.5])
def test_a_part_of_a_gpu_becomes_neither_none_nor_one(part):
    with pytest.raises(InvalidInputError, match="only whole ones are given out"):
        parse_spec({"command": ["a"], "resources": {"gpus": {"count": part}}})


def test_equal_shapes_are_one_object():
    one, two = (
        parse_spec({"command": [name], "resources": {"memory_gb": memory}})
        for name, memory in (("a", 16), ("b", "16GB"))
    )
    assert Shape.of(one) is Shape.of(two)


@pytest.mark.parametrize(
    "model",
    [JobSpec, Resources, GpuRequest, CheckpointSpec],
    ids=lambda model: model.__name__,
)
def test_every_part_refuses_what_it_does_not_know_and_cannot_be_changed(
    model: type[BaseModel],
):
    assert model.model_config["extra"] == "forbid"
    assert model.model_config["frozen"] is True


def test_a_stored_spec_may_have_a_pattern_that_is_refused_today() -> None:
    body = {"command": ["true"], "checkpoint": {"path": "/scratch/*.pt"}}
    spec = JobSpec.model_validate(body, context=STORED)
    assert spec.checkpoint.path == "/scratch/*.pt"
