"""What the client submits, as JSON: of a job, a batch and a prompt."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, TypeVar, cast
from uuid import uuid4
from zoneinfo import ZoneInfo

from gpuyard.domain.carried_environment import FILLED_IN
from gpuyard.domain.deadlines import is_past_only
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.jobconfig import JobConfig
from gpuyard.domain.jobspec import JobSpec

T = TypeVar("T")
Json = Mapping[str, Any]
Work = JobSpec | JobConfig | Json | Sequence[str]
# By these one knows S2's form and the seed document's task.
OTHER_FORMS = frozenset({"gpu_spec", "timeout_minutes", "task_class"})


def body_of(work: Work, fields: Json) -> dict[str, Any]:
    """The JSON to submit: `work` is a spec, S2's JobConfig, a mapping, or a command;
    `fields` are JobSpec fields.

    A command runs in the current directory and finds the programs this process finds.
    """
    if isinstance(work, JobConfig):
        return {
            **work.model_dump(mode="json", exclude_defaults=True),
            **fields,
            "gpu_spec": work.gpu_spec.model_dump(),
        }
    if isinstance(work, str):
        raise TypeError(f"give the command as a list, such as {work.split()!r}")
    if isinstance(work, JobSpec):
        given = work.given_json()
    else:
        given = dict(work) if isinstance(work, Mapping) else {"command": list(work)}
    return at_home_here({**given, **fields})


def at_home_here(body: Json) -> dict[str, Any]:
    """`body` with what it leaves open taken from here: the folder it runs in, where
    programs are found, and the time zone of its deadline.

    S2's form and the seed document's task say neither, so they are left as they stand.
    """
    if OTHER_FORMS & set(body):
        return dict(body)
    body = with_local_deadline(body)
    environment: Any = body.get("environment")
    # What is no table is the server's to refuse.
    if environment is None or isinstance(environment, dict):
        environment = shell_environment() | cast("dict[str, Any]", environment or {})
    folder = body["workdir"] if "workdir" in body else current_folder()
    return {**body, "workdir": folder, "environment": environment}


def local_deadline(given: Any, field: str = "deadline") -> Any:
    """The moment (UTC seconds) of a deadline that is `8h` from now, or a date with a
    time of this machine's zone unless it says another. InvalidInputError.

    What is neither text nor a date is the server's to refuse.
    """
    from gpuyard.client.local_timezone import local_timezone
    from gpuyard.domain.deadlines import deadline_of, from_now

    text = given.isoformat() if isinstance(given, date) else given
    if not isinstance(text, str):
        return text
    now = time.time()
    moment = from_now(text.strip(), now)
    if isinstance(moment, float):
        return moment  # without a look at the zone, which a machine may not name
    return deadline_of(field, text, ZoneInfo(local_timezone()), now)


def with_local_deadline(changes: Json) -> dict[str, Any]:
    """Changes of a job, with the moment of its new deadline, if it gets one."""
    if changes.get("deadline") is None:
        return dict(changes)
    return {**changes, "deadline": local_deadline(changes["deadline"])}


def submit_late(submit: Callable[[dict[str, Any]], T], body: Json) -> T:
    """Submit a job of several, which starts late: without its deadline if that has
    passed. Only the clock of the server counts, so it is asked. Errors as of `submit`.
    """
    try:
        return submit({**body})
    except InvalidInputError as error:
        if not is_past_only(error):
            raise
    return submit({name: body[name] for name in body if name != "deadline"})


def shell_environment() -> dict[str, str]:
    """The variables of this process that a job inherits."""
    return {name: os.environ[name] for name in FILLED_IN if name in os.environ}


def batch_body(
    script: str, items: Sequence[Json], source: str, fields: Json
) -> dict[str, Any]:
    """The JSON to submit: the script over these items; `fields` are those of a
    BatchSpec.

    Results come into a folder of the current one, and the script finds the programs
    that this process finds.
    """
    environment = shell_environment() | dict(fields.get("environment") or {})
    key = f"sent_{uuid4().hex}"
    return {
        "results": current_folder(),
        "idempotency_key": key,
        **fields,
        "script": script,
        "items": list(items),
        "source": source,
        "environment": environment,
    }


def chat_body(model: str, prompt: str, max_tokens: int | None) -> dict[str, Any]:
    """A chat request of one message, in OpenAI's form."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
    }
    return body | ({"max_tokens": max_tokens} if max_tokens else {})


def current_folder() -> str:
    """Where this process works. InvalidInputError when that was removed."""
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        raise InvalidInputError.of(
            "workdir", "the current folder was removed", "change to another one"
        ) from None
