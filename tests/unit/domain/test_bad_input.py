"""Bad specs: each gets one clear error that names the field, what was wrong with it and
what would be right.
"""

from typing import Any

import pytest

from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.spec_values import MAX_DEPTH
from gpuyard.domain.validation import parse_spec

SECRET = "hunter2-hunter2"


def refused(**fields: Any) -> InvalidInputError:
    with pytest.raises(InvalidInputError) as caught:
        parse_spec({"command": ["true"], **fields})
    assert caught.value.status == 422
    return caught.value


def nested(depth: int) -> dict[str, Any]:
    body: dict[str, Any] = {}
    for _ in range(depth - 1):
        body = {"in": body}
    return body


def gpu(**fields: Any) -> dict[str, Any]:
    return {"gpus": fields}


@pytest.mark.parametrize(
    ("fields", "field", "fault", "remedy"),
    [
        ({"nmae": "a"}, "nmae", "is not a field", "did you mean name"),
        (
            {"zzzzzz": 1},
            "zzzzzz",
            "is not a field",
            "known here: allowed, args, artifacts, artifacts_always",
        ),
        (
            {"args": ["--epochs", "3"]},
            "args",
            "holds words",
            "the words of a program go behind it: command = [",
        ),
        (
            {"resources": {"gpu": 1}},
            "resources.gpu",
            "is not a field",
            "did you mean gpus",
        ),
        (
            {"resources": gpu(cout=1)},
            "resources.gpus.cout",
            "is not a field",
            "did you mean count?",
        ),
        (
            {"timeout_s": "5 bananas"},
            "timeout_s",
            "'5 bananas' is not a duration",
            "such as 90s, 15m or 2h",
        ),
        (
            {"timeout_s": "16GB"},
            "timeout_s",
            "'16GB' is not a duration",
            "seconds as a number",
        ),
        (
            {"timeout_s": "1; 2"},
            "timeout_s",
            "'1; 2' is not a duration",
            "write seconds",
        ),
        (
            {"resources": {"memory_gb": "16 km"}},
            "resources.memory_gb",
            "'16 km' is not a size",
            "such as 16GB",
        ),
        ({"timeout_s": -5}, "timeout_s", "is -5", "must be more than 0"),
        (
            {"timeout_s": 1e12},
            "timeout_s",
            "is 1000000000000.0",
            "must be at most 31622400",
        ),
        ({"resources": {"cpus": 0}}, "resources.cpus", "is 0", "must be more than 0"),
        (
            {"resources": {"cpus": 1e9}},
            "resources.cpus",
            "is 1000000000.0",
            "must be at most 10000",
        ),
        (
            {"resources": {"memory_gb": -16}},
            "resources.memory_gb",
            "is -16",
            "must be more than 0",
        ),
        (
            {"resources": {"memory_gb": 10**400}},
            "resources.memory_gb",
            "is not a size",
            "gigabytes as a number",
        ),
        ({"resources": {"nodes": 0}}, "resources.nodes", "is 0", "must be at least 1"),
        (
            {"resources": gpu(count=-1)},
            "resources.gpus.count",
            "is -1",
            "must be at least 0",
        ),
        (
            {"resources": gpu(count=10**6)},
            "resources.gpus.count",
            "is 1000000",
            "must be at most 1024",
        ),
        (
            {"resources": gpu(gpu_class="A1000")},
            "resources.gpus.gpu_class",
            "there is no GPU class 'A1000'",
            "nearest: a100",
        ),
        (
            {"resources": gpu(gpu_class="x" * 10**6)},
            "resources.gpus.gpu_class",
            "is 'xxx",
            "at most 200 characters",
        ),
        (
            {"resources": gpu(compute_capability="new")},
            "resources.gpus.compute_capability",
            "'new' is not a",
            "as 8.6",
        ),
        (
            {"resources": gpu(uuid=["GPU-1"], count=2)},
            "resources.gpus",
            "uuid names 1 GPUs but count is 2",
            "make them agree",
        ),
        (
            {"resources": gpu(count="two")},
            "resources.gpus.count",
            "is 'two'",
            "must be a valid integer",
        ),
        ({"resources": 4}, "resources", "is 4", "must be an object"),
        (
            {"environment": {"CUDA_VISIBLE_DEVICES": "0"}},
            "environment.CUDA_VISIBLE_DEVICES",
            "belongs to the scheduler",
            "remove it and ask with resources.gpus",
        ),
        (
            {"environment": {"GPUYARD_JOB_ID": "x"}},
            "environment.GPUYARD_JOB_ID",
            "set by gpuyard itself",
            "another name",
        ),
        (
            {"environment": {"not a name": "x"}},
            "environment",
            "'not a name' is not a variable name",
            "use letters",
        ),
        (
            {"name": "tidy\x1b[31m"},
            "name",
            "holds control characters ('\\x1b')",
            "use printable characters only",
        ),
        ({"name": "two\nlines"}, "name", "holds control characters", "use printable"),
        ({"name": ""}, "name", "is ''", "must have at least 1 character"),
        ({"name": "x" * 201}, "name", "is 'xxx", "must have at most 200 characters"),
        (
            {"labels": {"a\x07b": "c"}},
            "labels.'a\\x07b'",
            "holds control characters",
            "use printable",
        ),
        (
            {"labels": {"a": "\x07"}},
            "labels.a",
            "holds control characters",
            "use printable",
        ),
        (
            {"command": "python train.py"},
            "command",
            "is 'python train.py'",
            "must be a list, such as",
        ),
        (
            {"command": []},
            "command",
            "is missing",
            "give the program and its arguments",
        ),
        (
            {"command": [""]},
            "command",
            "begins with an empty string",
            "the program to run",
        ),
        ({"command": ["a", "b\0c"]}, "command.1", "holds a NUL byte", "remove it"),
        (
            {"stdin": ["a secret"]},
            "stdin",
            "has a value of the wrong type",
            "must be a valid string",
        ),
        (
            {"stdin": "\u20ac" * 400_000},
            "stdin",
            "is 1.2 MB; a spec may have 1 MB",
            "from a file",
        ),
        (
            {"allowed": {"quarantined": "sure"}},
            "allowed.quarantined",
            "is 'sure'",
            "must be a valid boolean",
        ),
        (
            {"prompt": "hello"},
            "command",
            "does not belong in a job of kind llm",
            "give prompt and no command",
        ),
        (
            {"kind": "dance"},
            "kind",
            "is 'dance'",
            "must be one of 'command', 'script', 'llm', 'model' or 'worker'",
        ),
        ({"priority": 6}, "priority", "is 6", "must be at most 5"),
        ({"priority": 2.5}, "priority", "is 2.5", "must be a valid integer"),
        ({"retry_count": -1}, "retry_count", "is -1", "must be at least 0"),
        (
            {"deadline": "tomorrow"},
            "deadline",
            "'tomorrow' is no time",
            "write UTC seconds, or a date-time with its zone such as 2026-12-01T18:00",
        ),
        (
            {"deadline": "2026-12-01T18:00"},
            "deadline",
            "2026-12-01T18:00:00 does not say its zone",
            "write it with one",
        ),
        # As JavaScript counts.
        ({"deadline": 1.8e12}, "deadline", "is 1800000000000", "must be at most"),
        ({"max_price": "NaN"}, "max_price", "is 'NaN'", "must be a finite number"),
        (
            {"checkpoint": {"signal": "KILL"}},
            "checkpoint.signal",
            "'KILL' is not a signal a program can catch",
            "use USR1",
        ),
        (
            {"checkpoint": {"path": "/etc/*"}},
            "checkpoint.path",
            "'/etc/*' may lead out of the job's folder",
            "write it relative to that folder, without '..'",
        ),
        (
            {"checkpoint": {"path": "out/../../*.pt"}},
            "checkpoint.path",
            "'out/../../*.pt' may lead out of the job's folder",
            "write it relative to that folder, without '..'",
        ),
        ({"checkpoint": {"every_s": 60}}, "checkpoint", "every_s needs signal", ""),
        ({"depends_on": "other"}, "depends_on", "is 'other'", "must be a list"),
        (
            {"args": nested(MAX_DEPTH + 1)},
            "args",
            "is nested more than 64 deep",
            "put large data into a file",
        ),
        ({"[key]": 1}, "[key]", "is not a field", "known here"),
        ({"\x1b[31mred": 1}, "'\\x1b[31mred'", "is not a field", "known here"),
    ],
)
def test_one_error_names_field_fault_and_remedy(fields, field, fault, remedy):
    error = refused(**fields)
    (found,) = error.faults
    assert found.field == field
    assert fault in found.fault
    assert remedy in found.remedy
    assert str(error).isprintable()
    assert len(str(error)) < 600


@pytest.mark.parametrize("body", [None, 3, "x", [], [{"command": ["x"]}]])
def test_what_is_no_object_at_all(body):
    with pytest.raises(
        InvalidInputError, match=r"\(body\): is .*, not an object \(send a JobSpec\)"
    ):
        parse_spec(body)


def test_an_empty_spec_says_what_to_run():
    with pytest.raises(InvalidInputError, match="command: is missing"):
        parse_spec({})


def test_every_wrong_field_is_named_at_once():
    error = refused(nmae="a", priority=9, resources={"cpus": -1})
    assert {fault.field for fault in error.faults} == {
        "nmae",
        "priority",
        "resources.cpus",
    }


@pytest.mark.parametrize(
    "environment",
    [
        SECRET,
        [SECRET],
        {"A": [SECRET]},
        {"A": {"B": SECRET}},
        {"A": SECRET + "\0"},
        {"CUDA_VISIBLE_DEVICES": SECRET},
        {"GPUYARD_TOKEN": SECRET},
        {"1A": SECRET},
    ],
)
def test_a_value_in_the_environment_is_never_shown(environment):
    assert SECRET not in str(refused(environment=environment))


def test_deep_data_is_accepted_up_to_the_bound():
    assert parse_spec({"command": ["true"], "args": nested(MAX_DEPTH)})


def test_a_nearest_name_is_offered_for_a_misspelt_gpu():
    (fault,) = refused(resources=gpu(gpu_class="h100-80g")).faults
    assert "h100-80gb" in fault.remedy


@pytest.mark.parametrize(
    ("work", "fault"),
    [
        ({"prompt": "hello"}, "does not belong in a job of kind llm"),
        ({"script": "whisper"}, "does not belong in a job of kind script"),
        ({"command": ["a"], "stdin": ""}, "is true, and stdin is given"),
        ({"command": ["a"], "image": "b"}, "passes no input on to containers"),
        ({"command": ["a"], "resources": {"nodes": 2}}, "resources.nodes is 2"),
    ],
    ids=["prompt", "script", "stdin", "image", "nodes"],
)
def test_an_open_input_is_refused_where_nobody_could_type(work, fault):
    with pytest.raises(InvalidInputError, match=f"interactive: .*{fault}"):
        parse_spec({**work, "interactive": True})


@pytest.mark.parametrize(
    "work",
    [
        {"prompt": "hello"},
        {"script": "whisper"},
        {"kind": "model", "command": ["serve"]},
    ],
)
def test_only_a_command_has_a_standard_input(work):
    with pytest.raises(
        InvalidInputError,
        match=r"stdin: does not belong in a job of kind .*only a command",
    ):
        parse_spec({**work, "stdin": "x"})
