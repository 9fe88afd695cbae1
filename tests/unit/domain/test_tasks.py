"""The seed document's task, schema v2: what it means as a job, and what is wrong with
one.
"""

import pytest

from gpuyard.domain.errors import InvalidInputError, NotFoundError
from gpuyard.domain.jobs import Job
from gpuyard.domain.jobspec import JobKind
from gpuyard.domain.states import JobState
from gpuyard.domain.tasks import STATUS, is_task, spec_from_task, task_of
from gpuyard.domain.validation import parse_spec

LLM = {
    "task_id": "t-1",
    "task_class": "llm",
    "task_type": "generate",
    "prompt": "hello",
}
SCRIPT = {
    "task_id": "t-2",
    "task_class": "script",
    "task_type": "embed",
    "script": "/opt/embed.py",
}
INDICES = {"GPU-one": 1}
DOCUMENT = {
    **SCRIPT,
    "script_args": {"model": "small", "batch_size": 8, "fast": True},
    "priority": 5,
    "gpu_requirement": "any",
    "estimated_duration_sec": 60,
    "status": "queued",
    "assigned_gpu": None,
    "created_at": "2025-02-05T10:30:00Z",
    "started_at": None,
    "completed_at": None,
}


def find_gpu(reference: str) -> str:
    if reference != "1":
        raise NotFoundError(f"There is no GPU {reference!r}.")
    return "GPU-one"


def spec_of(task):
    spec, warnings = spec_from_task(task, find_gpu)
    return spec, warnings


def test_the_documents_own_task_is_taken_as_it_stands():
    spec, warnings = spec_of(DOCUMENT)
    assert spec.command == (
        "python3",
        "/opt/embed.py",
        "--model",
        "small",
        "--batch-size",
        "8",
        "--fast",
    )
    assert (spec.priority, spec.estimated_duration_s, spec.resources.gpus.count) == (
        5,
        60,
        1,
    )
    assert (spec.name, spec.idempotency_key, spec.labels["task_type"]) == (
        "t-2",
        "t-2",
        "embed",
    )
    assert warnings == []


def test_a_prompt_is_a_job_for_a_model():
    spec, _ = spec_of(LLM)
    assert (spec.kind, spec.prompt, spec.resources.gpus.count) == (
        JobKind.LLM,
        "hello",
        0,
    )


@pytest.mark.parametrize(
    ("wanted", "count", "uuid"),
    [("any", 1, ()), ("none", 0, ()), ("1", 1, ("GPU-one",))],
)
def test_what_a_script_asks_of_gpus(wanted, count, uuid):
    gpus = spec_of({**SCRIPT, "gpu_requirement": wanted})[0].resources.gpus
    assert (gpus.count, gpus.uuid) == (count, uuid)


def test_a_prompt_may_name_its_model():
    assert spec_of({**LLM, "model": "small"})[0].model == "small"
    assert spec_of(LLM)[0].model is None


def test_a_gpu_that_is_not_there_is_named():
    with pytest.raises(NotFoundError, match="no GPU '7'"):
        spec_of({**SCRIPT, "gpu_requirement": 7})


def test_a_prompt_may_prefer_a_gpu():
    assert spec_of({**LLM, "gpu_requirement": "1"})[0].resources.gpus.uuid == (
        "GPU-one",
    )
    with pytest.raises(NotFoundError, match="no GPU '7'"):
        spec_of({**LLM, "gpu_requirement": 7})


@pytest.mark.parametrize(
    ("fields", "field", "fault"),
    [
        ({"task_type": "embed"}, "task_type", "'embed' is no type of class llm"),
        ({"task_class": "cpu"}, "task_class", "is 'cpu'"),
        ({"prompt": None}, "prompt", "is missing"),
        ({"script": "/x.py"}, "script", "does not belong"),
        (
            {
                "task_class": "script",
                "task_type": "embed",
                "prompt": None,
                "script": "/x.py",
                "model": "small",
            },
            "model",
            "does not belong",
        ),
        ({"priority": 9}, "priority", "at most 5"),
        ({"gpu_requirement": "none"}, "gpu_requirement", "needs a GPU"),
        ({"color": "red"}, "color", "is not a field"),
    ],
)
def test_one_error_names_what_is_wrong(fields, field, fault):
    with pytest.raises(InvalidInputError) as caught:
        spec_of({**LLM, **fields})
    (found,) = caught.value.faults
    assert found.field == field
    assert fault in f"{found.fault}; {found.remedy}"


def test_a_script_that_is_neither_registered_nor_a_path_is_refused():
    with pytest.raises(InvalidInputError, match="no registered script"):
        spec_of({**SCRIPT, "script": "whisper_transcribe"})


def test_other_forms_are_not_taken_for_tasks():
    assert is_task(LLM)
    assert not any(map(is_task, [{"command": ["true"]}, {"prompt": "x"}, [], None]))


def job_of(spec, **more) -> Job:
    return Job(
        id="job_1",
        name=spec.name,
        kind=spec.kind,
        state=JobState.QUEUED,
        priority=3,
        created_at=0.0,
        labels=spec.labels,
        spec=spec.given_json(),
        **more,
    )


@pytest.mark.parametrize("wanted", ["any", "none", "1", 1])
def test_a_task_reads_back_the_gpu_that_it_asked_for(wanted):
    spec, _ = spec_of({**SCRIPT, "gpu_requirement": wanted})
    assert task_of(job_of(spec), INDICES.get)["gpu_requirement"] == str(wanted)


def test_the_gpu_that_a_prompt_asked_for_reads_back_too():
    spec, _ = spec_of({**LLM, "gpu_requirement": "1"})
    assert task_of(job_of(spec), INDICES.get)["gpu_requirement"] == "1"


@pytest.mark.parametrize(
    ("gpus", "shown"),
    [(None, "none"), ({"count": 1}, "any"), ({"count": 1, "uuid": ["GPU-1"]}, "GPU-1")],
)
def test_other_jobs_show_what_gpus_they_ask_for(gpus, shown):
    body = {"command": ["true"]}
    if gpus:
        body["resources"] = {"gpus": gpus}
    assert task_of(job_of(parse_spec(body)), INDICES.get)["gpu_requirement"] == shown


def test_the_assigned_gpu_is_its_index_with_the_uuid_beside_it():
    spec, _ = spec_of(SCRIPT)
    task = task_of(job_of(spec, gpus=["GPU-one"]), INDICES.get)
    assert (task["assigned_gpu"], task["assigned_gpu_uuid"]) == (1, "GPU-one")
    task = task_of(job_of(spec), INDICES.get)
    assert (task["assigned_gpu"], task["assigned_gpu_uuid"]) == (None, None)


def test_a_task_that_was_read_back_is_a_task():
    spec, _ = spec_of(DOCUMENT)
    again, _ = spec_of(task_of(job_of(spec, gpus=["GPU-one"]), INDICES.get) | SCRIPT)
    assert again.labels == spec.labels


@pytest.mark.parametrize("state", list(JobState))
def test_a_job_is_shown_in_the_tasks_own_words(state):
    job = Job(
        id="job_1",
        name="t-1",
        kind=JobKind.LLM,
        state=state,
        priority=3,
        created_at=0.0,
        ended_at=60.0,
        labels={"task_type": "parse"},
        spec={"prompt": "hello"},
    )
    task = task_of(job, INDICES.get)
    assert (task["task_id"], task["task_class"], task["task_type"]) == (
        "t-1",
        "llm",
        "parse",
    )
    assert task["status"] == STATUS[state]
    assert (task["created_at"], task["completed_at"]) == (
        "1970-01-01T00:00:00Z",
        "1970-01-01T00:01:00Z",
    )
