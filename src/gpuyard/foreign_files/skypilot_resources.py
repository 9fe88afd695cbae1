"""`resources` of a task of SkyPilot, as fields of a job."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from gpuyard.domain.gpus import resolve_gpu_class
from gpuyard.foreign_files.translation import pruned, refused

_FIELDS = frozenset({"accelerators", "cpus", "memory", "use_spot", "image_id"})
_CHOOSES = "gpuyard chooses the place; see `gpuyard run --provider` and `--region`"
_UNUSED = {
    "accelerator_args": _CHOOSES,
    "autostop": "gpuyard gives back what no job uses",
    "cloud": _CHOOSES,
    "disk_size": "gpuyard does not book room on disks",
    "disk_tier": "gpuyard does not book room on disks",
    "infra": _CHOOSES,
    "instance_type": _CHOOSES,
    "job_recovery": "what loses its place goes back to the queue; see `--retries`",
    "labels": "they concern machines of a cloud",
    "local_disk": "gpuyard does not book room on disks",
    "max_hourly_cost": "see `gpuyard run --max-price`",
    "network_tier": _CHOOSES,
    "ports": "`gpuyard forward JOB PORT` opens a port of a job",
    "priority": "see `gpuyard run --priority`",
    "region": _CHOOSES,
    "spot_recovery": "what loses its place goes back to the queue; see `--retries`",
    "zone": _CHOOSES,
}
_SEVERAL = ("any_of", "ordered")
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)\+?")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:GB|G)?\+?", re.IGNORECASE)


def table_of(value: object, place: str) -> dict[str, Any]:
    """A table with text for names, empty for None; InvalidInputError."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise refused(place, "is no table", "write `name: value` below it")
    table = cast("Mapping[object, Any]", value)
    return {str(name): inner for name, inner in table.items()}


def not_used(given: Mapping[str, Any], place: str) -> Iterator[str]:
    """What of `resources` is not used, a line each; InvalidInputError for a field that
    gpuyard must refuse or does not know.
    """
    for name in given:
        where = f"{place}.{name}"
        if name in _UNUSED:
            yield f"{where} is not used: {_UNUSED[name]}"
        elif name in _SEVERAL:
            fault = "offers a choice, and a job asks for one size"
            raise refused(where, fault, "write one of them")
        elif name not in _FIELDS:
            known = ", ".join(sorted(_FIELDS))
            fault = "is a field that gpuyard does not know"
            raise refused(where, fault, f"there are: {known}")


def fields_of_resources(
    given: Mapping[str, Any], place: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of a job, and those of its `resources`; InvalidInputError."""
    fields = {
        "spot": True if given.get("use_spot") else None,
        "image": _image(given.get("image_id"), f"{place}.image_id"),
    }
    resources = {
        "cpus": _quantity(given.get("cpus"), _NUMBER, f"{place}.cpus"),
        "memory_gb": _quantity(given.get("memory"), _SIZE, f"{place}.memory"),
        "gpus": _gpus(given.get("accelerators"), f"{place}.accelerators"),
    }
    return pruned(fields), pruned(resources)


def _image(value: object, place: str) -> str | None:
    if value is None:
        return None
    if isinstance(value, str) and value.startswith("docker:"):
        return value.removeprefix("docker:")
    remedy = "write docker:IMAGE, or remove it"
    raise refused(place, f"is {value!r}, an image of a machine", remedy)


def _quantity(value: object, form: re.Pattern[str], place: str) -> float | None:
    """`4` and `4+`, which mean the same here: so much is booked."""
    if value is None:
        return None
    match = form.fullmatch(str(value).strip())
    if match is None:
        raise refused(place, f"is {value!r}", "write a number such as 4 or 4+")
    return float(match[1])


def _gpus(value: object, place: str) -> dict[str, Any] | None:
    """GPUs of `A100`, `A100:8` or `{A100: 8}`."""
    if value is None:
        return None
    if isinstance(value, Mapping):
        table = table_of(cast("object", value), place)
        if len(table) != 1:
            raise refused(place, "offers a choice", "write one kind of GPU")
        (kind, number) = next(iter(table.items()))
    elif isinstance(value, str):
        (kind, _, number) = value.partition(":")
    else:
        raise refused(place, "offers a choice", "write one kind of GPU, such as A100:8")
    count = str(number or 1)
    if not (count.isascii() and count.isdecimal() and int(count)):
        remedy = "write a number of whole GPUs, such as A100:1"
        raise refused(place, f"asks for {count} of {kind}", remedy)
    try:
        resolve_gpu_class(kind)
    except ValueError as error:
        raise refused(place, str(error), "name a class that there is") from None
    return {"count": int(count), "gpu_class": kind}
