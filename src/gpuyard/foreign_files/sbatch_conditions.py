"""`--dependency` and `--export` of `sbatch`, as fields of a job. ValueError."""

from collections.abc import Mapping
from typing import Any

_FIELDS = {
    "afterok": "depends_on",
    "afternotok": "depends_on_failed",
    "afterany": "depends_on_any",
}


def dependencies(text: str) -> dict[str, Any]:
    """The fields that `afterok:JOB:JOB,afterany:JOB` means; a JOB is a name or an id of
    gpuyard.
    """
    if "?" in text:
        raise ValueError(f"is {text!r}, and gpuyard waits for all of them, not for one")
    fields: dict[str, list[str]] = {}
    for condition in text.split(","):
        (kind, *jobs) = condition.split(":")
        field = _FIELDS.get(kind)
        if field is None:
            known = ", ".join(_FIELDS)
            raise ValueError(f"has {kind!r}, and gpuyard knows {known}")
        if not jobs or not all(jobs):
            raise ValueError(f"has {condition!r}, which names no job")
        fields.setdefault(field, []).extend(jobs)
    return dict(fields)


def exported(text: str, shell: Mapping[str, str]) -> dict[str, Any]:
    """The fields that `ALL`, `NONE`, `ALL,A=1` or `A,B=2` mean. `shell`: the variables
    here, from which a name without a value gets its own.
    """
    words = [word for word in text.split(",") if word]
    takes_all = "ALL" in words
    environment: dict[str, str] = {}
    for word in words:
        (name, has_value, value) = word.partition("=")
        if has_value:
            environment[name] = value
        elif word not in ("ALL", "NONE", "NIL"):
            if word not in shell:
                raise ValueError(f"names {word}, which is not set here")
            environment[word] = shell[word]
    fields: dict[str, Any] = {"environment": environment} if environment else {}
    return fields if takes_all else {**fields, "clean_env": True}
