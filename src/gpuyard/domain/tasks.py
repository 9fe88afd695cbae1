"""Tasks: the seed document's form of a job (schema v2), accepted and shown as the
document defines it.
"""

from collections.abc import Callable, Container, Mapping
from enum import StrEnum
from pathlib import PurePath
from typing import Any, Self

from pydantic import Field, model_validator

from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.jobs import Job
from gpuyard.domain.jobspec import JobSpec, Name
from gpuyard.domain.states import JobState
from gpuyard.domain.strict_model import StrictModel
from gpuyard.domain.units import iso_time
from gpuyard.domain.validation import parse_model, parse_spec

FindGpu = Callable[[str], str]


class TaskClass(StrEnum):
    """A prompt for a model, or a script."""

    LLM = "llm"
    SCRIPT = "script"


TYPES: Mapping[TaskClass, tuple[str, ...]] = {
    TaskClass.LLM: ("parse", "transform", "generate", "execute", "decide"),
    TaskClass.SCRIPT: ("transcribe", "embed", "process"),
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


class Task(StrictModel):
    """A task.

    gpuyard sets `status` and the fields after it; given values are ignored.
    """

    task_id: Name
    task_class: TaskClass
    task_type: str
    prompt: str | None = None
    script: str | None = None
    script_args: dict[str, Any] = Field(default_factory=dict)
    priority: int = Field(default=3, ge=1, le=5)
    gpu_requirement: str | int = "any"
    estimated_duration_sec: float | None = Field(default=None, gt=0)
    status: str | None = None
    assigned_gpu: str | int | None = None
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
        if is_prompt and self.gpu_requirement == "none":
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
    body: dict[str, Any] = {
        "name": task.task_id,
        "priority": task.priority,
        "estimated_duration_s": task.estimated_duration_sec,
        "idempotency_key": task.task_id,
        "labels": {"task_class": task.task_class.value, "task_type": task.task_type},
    }
    warnings: list[str] = []
    if task.task_class is TaskClass.LLM:
        body["prompt"] = task.prompt
        if task.gpu_requirement != "any":
            warnings.append(
                "gpu_requirement was passed over: a prompt goes to any GPU on which its"
                " model is"
            )
        return parse_spec(body), warnings
    gpus: dict[str, Any] = {"count": 0 if task.gpu_requirement == "none" else 1}
    if task.gpu_requirement not in ("any", "none"):
        gpus["uuid"] = [find_gpu(str(task.gpu_requirement))]
    if not task.script or task.script not in scripts:
        body["command"] = _command(task)
        body["resources"] = {"gpus": gpus}
        return parse_spec(body), warnings
    body["script"] = task.script
    body["args"] = task.script_args
    # With "any", the script's own needs apply.
    if task.gpu_requirement != "any":
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


def task_of(job: Job) -> dict[str, Any]:
    """A job as a task, whatever form it was submitted in."""
    spec = job.spec or {}
    is_prompt = bool(spec.get("prompt"))
    default_type = "generate" if is_prompt else "process"
    script = None
    if not is_prompt:
        script = spec.get("script") or " ".join(spec.get("command", ()))
    return {
        "task_id": job.name if "task_type" in job.labels else job.id,
        "task_class": TaskClass.LLM if is_prompt else TaskClass.SCRIPT,
        "task_type": job.labels.get("task_type", default_type),
        "prompt": spec.get("prompt"),
        "script": script,
        "script_args": {} if is_prompt else spec.get("args", {}),
        "priority": job.priority,
        "gpu_requirement": "any" if is_prompt or job.gpus else "none",
        "estimated_duration_sec": spec.get("estimated_duration_s"),
        "status": STATUS[job.state],
        "assigned_gpu": job.gpus[0] if job.gpus else None,
        "created_at": _iso(job.created_at),
        "started_at": _iso(job.started_at),
        "completed_at": _iso(job.ended_at),
    }


def _iso(at: float | None) -> str | None:
    return None if at is None else iso_time(at)
