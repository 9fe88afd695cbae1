"""Turns unchecked data into a JobSpec, or into one InvalidInputError with every field,
fault and remedy.
"""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from gpuyard.domain.errors import Fault, InvalidInputError, quoted
from gpuyard.domain.jobspec import JobSpec

Model = TypeVar("Model", bound=BaseModel)
# Clients fill these in; whoever mistypes a name means none of them.
_FILLED_IN = frozenset({"carried_environment", "submitted_code", "program_needs"})
# Names that people know from the command's options or from other systems.
_OTHER_WORDS = {
    "timeout": "timeout_s",
    "retries": "retry_count",
    "env": "environment",
    "envs": "environment",
    "after": "depends_on",
    "after_failed": "depends_on_failed",
    "after_any": "depends_on_any",
    "afterok": "depends_on",
    "afternotok": "depends_on_failed",
    "afterany": "depends_on_any",
    "hold": "held",
    "memory": "resources.memory_gb",
    "cpus": "resources.cpus",
    "gpu": "resources.gpus",
    "gpus": "resources.gpus",
    "gpu_memory": "resources.gpus.memory_gb",
    "gpu_class": "resources.gpus.gpu_class",
    "grace": "checkpoint.grace_s",
    "label": "labels",
    "cwd": "workdir",
}
_ARRAYS = "send it alone to /api/v1/arrays, as `gpuyard run --array` does"


def parse_spec(data: Any) -> JobSpec:
    """A JobSpec from a mapping; InvalidInputError otherwise."""
    return parse_model(JobSpec, data)


def parse_model(model: type[Model], data: Any) -> Model:
    """`data` as a `model`, or InvalidInputError with one Fault per wrong field."""
    if not isinstance(data, Mapping):
        raise InvalidInputError.of(
            "(body)",
            f"is {type(data).__name__}, not an object",
            f"send a {model.__name__}",
        )
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise InvalidInputError(faults_of(error, model)) from None


def faults_of(error: ValidationError, model: type[BaseModel]) -> list[Fault]:
    """Pydantic's errors as faults."""
    return [_fault(dict(item), model) for item in error.errors(include_url=False)]


def value_in_words(error: ValidationError) -> str:
    """What is wrong with the value of an option, and what would be right."""
    item: dict[str, Any] = dict(error.errors(include_url=False)[0])
    if item["type"] == "value_error":
        return str(item["ctx"]["error"])
    fault = _fault(item, BaseModel)
    return f"it {fault.fault}; it {fault.remedy}"


def _fault(item: dict[str, Any], model: type[BaseModel]) -> Fault:
    path = list(item["loc"])
    kind = item["type"]
    context = item.get("ctx", {})
    if path[-1:] == ["[key]"] and kind != "extra_forbidden":
        # Pydantic's mark for a wrong key of a mapping; the key stands before it.
        path.pop()
    field = ".".join(_step(part) for part in path) or "(body)"
    if kind == "extra_forbidden":
        names = _fields_at(model, path[:-1])
        name = path[-1]
        near = get_close_matches(str(name), names, n=3, cutoff=0.5)
        if path == ["array"]:
            return Fault(field, "is not a field of a single job", _ARRAYS)
        if len(path) == 1 and name in _OTHER_WORDS:
            near = [_OTHER_WORDS[name]]
        own = sorted(set(names) - _FILLED_IN)
        remedy = f"known here: {', '.join(own)}"
        if near:
            remedy = f"did you mean {' or '.join(near)}?"
        return Fault(field, "is not a field", remedy)
    if kind == "value_error":
        return own_words(field, str(context["error"]))
    if kind == "missing":
        return Fault(field, "is missing", "give it a value")
    # The values of variables and the input of a program may be secrets, so they are
    # never shown.
    secret = path[:1] in (["environment"], ["stdin"])
    shown = (
        "has a value of the wrong type" if secret else f"is {quoted(item.get('input'))}"
    )
    return Fault(field, shown, _remedy(kind, context, item["msg"]))


def _step(part: str | int) -> str:
    """One step of a field's path; a key from the sender may hold any text."""
    text = str(part)
    return text if text.isprintable() and len(text) <= 60 else quoted(text)


def own_words(field: str, text: str) -> Fault:
    """The fault from a validator of ours. These write `fault; remedy`, with `@field@`
    before it when the model and not a field is at fault.
    """
    marked = re.fullmatch(r"@([^@]+)@(.*)", text, re.DOTALL)
    if marked:
        field = marked[1] if field == "(body)" else f"{field}.{marked[1]}"
        text = marked[2]
    # The last semicolon, because a value that is quoted in the fault may hold one.
    fault, separator, remedy = text.rpartition("; ")
    return Fault(field, fault, remedy) if separator else Fault(field, text)


def _remedy(kind: str, context: Mapping[str, Any], message: str) -> str:
    bounds = {
        "greater_than": "must be more than {gt}",
        "greater_than_equal": "must be at least {ge}",
        "less_than": "must be less than {lt}",
        "less_than_equal": "must be at most {le}",
        "too_short": "must have {min_length} or more",
        "too_long": "must have at most {max_length}",
        "enum": "must be one of {expected}",
        "tuple_type": 'must be a list, such as ["one", "two"]',
        "dict_type": "must be an object",
        "model_type": "must be an object",
    }
    if kind in bounds:
        return bounds[kind].format(**context)
    # Pydantic's own sentence says what is right ("Input should be a valid integer").
    return re.sub(r"^\w+ should", "must", message)


def _fields_at(model: type[BaseModel], path: list[Any]) -> list[str]:
    """The valid field names at `path` inside `model`."""
    current: type[BaseModel] = model
    for part in path:
        info = current.model_fields.get(str(part))
        # In a list such as `tuple[Tier, ...]`, positions are steps of the path too, but
        # no fields.
        kinds = (info.annotation, *get_args(info.annotation)) if info else ()
        current = next(
            (
                kind
                for kind in kinds
                if isinstance(kind, type) and issubclass(kind, BaseModel)
            ),
            current,
        )
    return [info.alias or name for name, info in current.model_fields.items()]
