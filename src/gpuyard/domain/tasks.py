"""Tasks: the seed document's form of a job (schema v2), accepted and shown as the
document defines it.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from enum import StrEnum
from pathlib import PurePath
from typing import Any, Self, get_args

from pydantic import Field, model_validator

from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.jobs import Job
from gpuyard.domain.jobspec import JobSpec
from gpuyard.domain.spec_values import Name
from gpuyard.domain.states import JobState
from gpuyard.domain.strict_model import StrictModel
from gpuyard.domain.task_types import LlmTaskType, ScriptTaskType
from gpuyard.domain.units import iso_time
from gpuyard.domain.validation import parse_model, parse_spec

FindGpu = Callable[[str], str]
FindIndex = Callable[[str], int | None]


class TaskClass(StrEnum):
    """A prompt for a model, or a script."""

    LLM = "llm"
    SCRIPT = "script"


TYPES: Mapping[TaskClass, tuple[str, ...]] = {
    TaskClass.LLM: get_args(LlmTaskType),
    TaskClass.SCRIPT: get_args(ScriptTaskType),
}
STATUS: Mapping[JobState, str] = {
    JobState.QUEUED: "queued",
    JobState.ASSIGNED: "assigned",
    JobState.RUNNING: "running",
    JobState.UNKNOWN: "running",
    JobState.COMPLETED: "complete",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "failed",
    JobState.TIMED_OUT: "failed",
}
_INTERPRETERS = {".py": "python3", ".sh": "sh"}
ANY_GPU = "any"
_NO_GPU = "none"
_TYPE_LABEL = "task_type"
# What a task asked for is kept in labels where the JobSpec does not tell it any more.
_GPU_LABEL = "gpu_requirement"


class Task(StrictModel):
    """A task. `model`: the model of a prompt; without it, gpuyard chooses one by the
    task's type.

    gpuyard sets `status` and the fields after it; given values are ignored.
    """

    task_id: Name
    task_class: TaskClass
    task_type: str
    prompt: str | None = None
    model: Name | None = None
    script: str | None = None
    script_args: dict[str, Any] = Field(default_factory=dict)
    priority: int = Field(default=3, ge=1, le=5)
    gpu_requirement: str | int = ANY_GPU
    estimated_duration_sec: float | None = Field(default=None, gt=0)
    status: str | None = None
    assigned_gpu: str | int | None = None
    assigned_gpu_uuid: str | None = None
    created_at: str | None = None
    started_at: str | None = None
    completed_at: str | None = None

    @model_validator(mode="after")
    def _type_matches_class(self) -> Self:
        types = TYPES[self.task_class]
        if self.task_type not in types:
            raise ValueError(
                f"@task_type@{self.task_type!r} is no type of class {self.task_class}; "
                f"use {', '.join(types)}"
            )
        is_prompt = self.task_class is TaskClass.LLM
        wanted = "prompt" if is_prompt else "script"
        other = "script" if is_prompt else "prompt"
        if not getattr(self, wanted):
            raise ValueError(
                f"@{wanted}@is missing in a task of class {self.task_class}; give it"
            )
        if getattr(self, other):
            raise ValueError(
                f"@{other}@does not belong in a task of class {self.task_class};"
                " remove it"
            )
        if self.model and not is_prompt:
            raise ValueError(
                f"@model@does not belong in a task of class {self.task_class}; remove"
                " it"
            )
        if is_prompt and self.gpu_requirement == _NO_GPU:
            raise ValueError(
                "@gpu_requirement@is none, and a task of class llm needs a GPU;"
                " write any"
            )
        return self


def is_task(data: Any) -> bool:
    """True when a submitted body is a task: only tasks have these keys."""
    return isinstance(data, Mapping) and ("task_class" in data or "task_id" in data)


def spec_from_task(
    data: Any, find_gpu: FindGpu, scripts: Container[str] = ()
) -> tuple[JobSpec, list[str]]:
    """The JobSpec of a task, and warnings. `find_gpu` returns the UUID for a GPU's
    index or UUID.

    `scripts` are the registered scripts; any other name is a program's path. A task
    that is submitted twice is one job: its id is the idempotency key.
    """
    task = parse_model(Task, data)
    wanted = str(task.gpu_requirement)
    labels = {"task_class": task.task_class.value, _TYPE_LABEL: task.task_type}
    if wanted != ANY_GPU:
        labels[_GPU_LABEL] = wanted
    body: dict[str, Any] = {
        "name": task.task_id,
        "priority": task.priority,
        "estimated_duration_s": task.estimated_duration_sec,
        "idempotency_key": task.task_id,
        "labels": labels,
    }
    warnings: list[str] = []
    if task.task_class is TaskClass.LLM:
        body["prompt"] = task.prompt
        body["model"] = task.model
        if wanted != ANY_GPU:
            body["resources"] = {"gpus": {"uuid": [find_gpu(wanted)]}}
        return parse_spec(body), warnings
    gpus: dict[str, Any] = {"count": 0 if wanted == _NO_GPU else 1}
    if wanted not in (ANY_GPU, _NO_GPU):
        gpus["uuid"] = [find_gpu(wanted)]
    if not task.script or task.script not in scripts:
        body["command"] = _command(task)
        body["resources"] = {"gpus": gpus}
        return parse_spec(body), warnings
    body["script"] = task.script
    body["args"] = task.script_args
    # With "any", the script's own needs apply.
    if wanted != ANY_GPU:
        body["resources"] = {"gpus": gpus}
    return parse_spec(body), warnings


def _command(task: Task) -> list[str]:
    """The script and its arguments as `--name value`, in their order."""
    path = PurePath(task.script or "")
    if not path.is_absolute():
        fault = f"{task.script!r} is no registered script, and no absolute path"
        raise InvalidInputError.of("script", fault, "give the script's whole path")
    words = [str(path)]
    interpreter = _INTERPRETERS.get(path.suffix)
    if interpreter:
        words.insert(0, interpreter)
    for name, value in task.script_args.items():
        words.append(f"--{name.replace('_', '-')}")
        if value is not True:
            words.append(str(value))
    return words


def task_type_of(labels: Mapping[str, str]) -> str | None:
    """The type of the task that a job with these labels was submitted as; None if it
    was none.
    """
    return labels.get(_TYPE_LABEL)


def task_id_of(job_id: str, name: str, labels: Mapping[str, str]) -> str:
    """The id of a job as a task: the one that it was given, or the job's."""
    return name if _TYPE_LABEL in labels else job_id


def task_of(job: Job, find_index: FindIndex) -> dict[str, Any]:
    """A job as a task, whatever form it was submitted in. `find_index` returns the
    index for a GPU's UUID, None for an unknown one.
    """
    spec = job.spec or {}
    is_prompt = bool(spec.get("prompt"))
    default_type = "generate" if is_prompt else "process"
    script = None
    if not is_prompt:
        script = spec.get("script") or " ".join(spec.get("command", ()))
    task: dict[str, Any] = {
        "task_id": task_id_of(job.id, job.name, job.labels),
        "task_class": TaskClass.LLM if is_prompt else TaskClass.SCRIPT,
        "task_type": job.labels.get(_TYPE_LABEL, default_type),
        "prompt": spec.get("prompt"),
        "script": script,
        "script_args": {} if is_prompt else spec.get("args", {}),
        "priority": job.priority,
        "gpu_requirement": _gpu_requirement(job.labels, spec),
        "estimated_duration_sec": spec.get("estimated_duration_s"),
    }
    if is_prompt:
        task["model"] = spec.get("model")
    return task | course_of(
        job.state,
        job.gpus,
        (job.created_at, job.started_at, job.ended_at),
        find_index,
    )


def course_of(
    state: JobState,
    gpus: Sequence[str],
    times: tuple[float, float | None, float | None],
    find_index: FindIndex,
) -> dict[str, Any]:
    """The fields of a task that gpuyard sets, for a job that has or had these GPUs.

    `times`: when it was created, started and ended (UTC seconds).
    """
    uuid = gpus[0] if gpus else None
    created_at, started_at, completed_at = map(_iso, times)
    return {
        "status": STATUS[state],
        "assigned_gpu": find_index(uuid) if uuid else None,
        "assigned_gpu_uuid": uuid,
        "created_at": created_at,
        "started_at": started_at,
        "completed_at": completed_at,
    }


def _gpu_requirement(labels: Mapping[str, str], spec: Mapping[str, Any]) -> str:
    """What the task asked for, as it said it; else what the job asks for."""
    if _GPU_LABEL in labels or _TYPE_LABEL in labels:
        return labels.get(_GPU_LABEL, ANY_GPU)
    gpus = spec.get("resources", {}).get("gpus")
    is_prompt = bool(spec.get("prompt"))
    # A spec leaves out what has its default, and the default is one GPU of any kind.
    if gpus is None or gpus.get("count", 1) == 0:
        return ANY_GPU if is_prompt else _NO_GPU
    pinned = gpus.get("uuid")
    return pinned[0] if pinned else ANY_GPU


def _iso(at: float | None) -> str | None:
    return None if at is None else iso_time(at)
