import pytest

from gpuyard.domain.arrays import (
    MAX_INDEX,
    MAX_TASKS,
    Array,
    array_range,
    array_state,
    exact_amount,
    refuse_unsuitable,
    task_body,
    task_spec,
)
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.states import JobState
from gpuyard.domain.validation import parse_spec


@pytest.mark.parametrize(
    ("text", "indices", "at_most"),
    [
        ("0-3", (0, 1, 2, 3), None),
        ("7", (7,), None),
        ("0-9:3", (0, 3, 6, 9), None),
        ("1,4,7-9", (1, 4, 7, 8, 9), None),
        ("5-5", (5,), None),
        ("0-3%2", (0, 1, 2, 3), 2),
        (" 9, 1 %20 ", (9, 1), 20),
        (f"{MAX_INDEX}", (MAX_INDEX,), None),
    ],
)
def test_indices_are_those_that_users_of_slurm_know(text, indices, at_most):
    found = array_range(text)
    assert (found.indices, found.at_most) == (indices, at_most)
    assert array_range(found.text).indices == indices


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("", "is empty or lacks an index at a comma"),
        ("1,,2", "is empty or lacks an index at a comma"),
        ("%3", "is empty or lacks an index at a comma"),
        ("5-2", "has 5-2, which goes down (write 2-5)"),
        ("-3", "has '-3', and an index is a whole number from 0 on"),
        ("0--3", "has '0--3', and an index is a whole number"),
        ("a-b", "has 'a-b', and an index is a whole number"),
        ("1-9:", "has '1-9:', and an index is a whole number"),
        ("3:2", "has '3:2', and an index is a whole number"),
        ("٣", "and an index is a whole number"),
        ("0-9:0", "has 0-9:0, and a step of 0 goes nowhere (write a step of 1"),
        ("1,4,1", "names the index 1 twice (name each index once)"),
        ("1-5,4", "names the index 4 twice"),
        ("0-9%0", "ends with %0, so that no task could ever run (write %1 or more)"),
        ("0-9%", "has '' behind %, which is not a number of tasks"),
        ("0-9%-1", "has '-1' behind %"),
        ("0-9%2%3", "has '2%3' behind %"),
        ("0-9%100001", "has %100001, and an array has at most 100,000 tasks (write"),
        ("0-9%99999999999999999999", "has %99999999999999999999, and an array"),
        ("," * 5_000_000, "has 5,000,001 tasks, and an array has at most"),
        (f"0-{MAX_TASKS}", f"has {MAX_TASKS + 1:,} tasks, and an array has at most"),
        ("0-999999999999", f"and the largest index is {MAX_INDEX}"),
        (10, "is 10, which is not text"),
        (["1"], "is ['1'], which is not text"),
    ],
)
def test_a_wrong_array_is_told_what_would_be_right(given, told):
    with pytest.raises(InvalidInputError) as refused:
        array_range(given)
    (fault,) = refused.value.faults
    assert fault.field == "array"
    assert fault.remedy
    assert told in str(fault)


def test_a_task_finds_its_index_in_its_command_and_its_checkpoints():
    body = {
        "command": ["python3", "fold_{i}.py", "--out={i}/{i}", "{j}", "echo ${i}"],
        "environment": {"OUT": "runs/{i}", "LOOP": "${i}"},
        "checkpoint": {"path": "out/{i}/*.pt", "resume_args": ["--from", "{path}"]},
    }
    task = task_body(body, 7)
    assert task == {
        **body,
        # `${i}` is a variable of the shell.
        "command": ["python3", "fold_7.py", "--out=7/7", "{j}", "echo ${i}"],
        "environment": {"OUT": "runs/7", "LOOP": "${i}"},
        "checkpoint": {"path": "out/7/*.pt", "resume_args": ["--from", "{path}"]},
    }
    assert task_spec(parse_spec(body), 7) == parse_spec(task)
    assert task_body({"command": ["true"]}, 7) == {"command": ["true"]}


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"prompt": "hello"}, "is given with prompt"),
        ({"script": "embed"}, "is given with script"),
        ({"command": ["bash"], "interactive": True}, "is given with interactive"),
    ],
)
def test_only_a_command_that_nobody_types_to_can_have_tasks(fields, told):
    with pytest.raises(InvalidInputError, match=told):
        refuse_unsuitable(fields)


@pytest.mark.parametrize(
    ("counts", "state"),
    [
        ({"queued": 3}, "queued"),
        ({"queued": 3, "completed": 1}, "running"),
        ({"unknown": 1, "failed": 2}, "running"),
        ({"completed": 3, "running": 0}, "completed"),
        ({"completed": 3, "cancelled": 1}, "cancelled"),
        ({"completed": 3, "cancelled": 1, "timed_out": 1}, "timed_out"),
        ({"timed_out": 3, "failed": 1}, "failed"),
    ],
)
def test_the_state_of_an_array_sums_its_tasks_up(counts, state):
    assert array_state({JobState(name): n for name, n in counts.items()}) == state


def test_what_is_left_of_an_array_is_not_over():
    counts = {JobState.QUEUED: 2, JobState.RUNNING: 1, JobState.FAILED: 4}
    array = Array(
        id="array_1",
        name="sweep",
        state=array_state(counts),
        tasks="0-6",
        total=7,
        counts=counts,
        priority=3,
        created_at=0.0,
    )
    assert array.left == 3


@pytest.mark.parametrize(
    ("sum_", "amount"), [(None, "0"), (0.1 + 0.2, "0.3"), (1200, "1200")]
)
def test_money_that_a_database_added_up_is_exact(sum_, amount):
    assert str(exact_amount(sum_)) == amount
