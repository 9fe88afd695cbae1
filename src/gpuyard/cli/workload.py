"""Reading a workload file for `gpuyard simulate`."""

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from gpuyard.cli.trace import MOST_FAULTS
from gpuyard.domain.errors import Fault, InvalidInputError
from gpuyard.residency.workload import Arrival, BatchArrival, Model, Script, Workload


class _GpuEntry(msgspec.Struct):
    uuid: str
    memory_gb: float


class _ModelEntry(msgspec.Struct):
    boot_s: float
    unload_s: float
    memory_gb: float
    wake_s: float | None = None


class _ScriptEntry(msgspec.Struct):
    boot_s: float
    exit_s: float
    memory_gb: float


class _ArrivalEntry(msgspec.Struct, rename={"kind": "class"}):
    t: float
    kind: str
    duration_s: float
    model: str | None = None
    script: str | None = None
    priority: int = 3


class _BatchEntry(msgspec.Struct):
    t: float
    script: str
    items: list[float]
    exclusive: bool = False
    reload: bool = True


class _WorkloadFile(msgspec.Struct):
    gpus: list[_GpuEntry]
    models: dict[str, _ModelEntry] = {}
    scripts: dict[str, _ScriptEntry] = {}
    arrivals: list[_ArrivalEntry] = []
    batches: list[_BatchEntry] = []
    initial: dict[str, str] = {}
    serial_loads: bool = False


def read_workload(path: Path) -> Workload:
    """The workload of a JSON file.

    Raises InvalidInputError with the file, the field and the remedy for each fault.
    """
    file = _decode(path)
    faults = list(islice(_faults(path, file), MOST_FAULTS))
    if faults:
        raise InvalidInputError(faults)
    return Workload(
        gpus={gpu.uuid: gpu.memory_gb for gpu in file.gpus},
        models={
            name: Model(m.boot_s, m.wake_s, m.unload_s, m.memory_gb)
            for name, m in file.models.items()
        },
        scripts={
            name: Script(s.boot_s, s.exit_s, s.memory_gb)
            for name, s in file.scripts.items()
        },
        arrivals=[
            Arrival(a.t, a.model or a.script or "", a.duration_s) for a in file.arrivals
        ],
        batches=[
            BatchArrival(b.t, b.script, tuple(b.items), b.exclusive, b.reload)
            for b in file.batches
        ],
        initial=file.initial,
        serial_loads=file.serial_loads,
    )


def _decode(path: Path) -> _WorkloadFile:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_WorkloadFile)
    except OSError as error:
        raise InvalidInputError.of(
            str(path), f"cannot be read: {error.strerror}", "name a workload file"
        ) from None
    except msgspec.ValidationError as error:
        words, _, place = str(error).partition(" - at `$")
        field = re.sub(r"^\.", "", place.rstrip("`")) or "the file"
        raise InvalidInputError.of(
            f"{path}: {field}", f"is wrong: {words}", "see the documented form"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInputError.of(
            str(path), f"is not JSON: {error}", "write a workload as JSON"
        ) from None


def _faults(path: Path, file: _WorkloadFile) -> Iterator[Fault]:
    """Faults that the schema cannot find.

    Unknown names, memory needs larger than every GPU, and negative times.
    """
    uuids = [gpu.uuid for gpu in file.gpus]
    if not uuids:
        yield Fault(f"{path}: gpus", "is empty", "name at least one GPU")
    for uuid in {uuid for uuid in uuids if uuids.count(uuid) > 1}:
        yield Fault(
            f"{path}: gpus", f"names {uuid!r} twice", "give each GPU a uuid of its own"
        )
    for field, known in (("models", file.models), ("scripts", file.scripts)):
        for name, needs in known.items():
            yield from _faulty_needs(
                f"{path}: {field}.{name}", msgspec.to_builtins(needs), file.gpus
            )
    for place, arrival in enumerate(file.arrivals):
        yield from _faulty_arrival(f"{path}: arrivals[{place}]", arrival, file)
    for place, batch in enumerate(file.batches):
        yield from _faulty_batch(f"{path}: batches[{place}]", batch, file)
    for uuid, model in file.initial.items():
        if uuid not in uuids:
            yield _unknown(f"{path}: initial", uuid, uuids)
        if model not in file.models:
            yield _unknown(f"{path}: initial.{uuid}", model, file.models)


def _faulty_batch(
    where: str, batch: _BatchEntry, file: _WorkloadFile
) -> Iterator[Fault]:
    if batch.script not in file.scripts:
        yield _unknown(f"{where}.script", batch.script, file.scripts)
    if not batch.items:
        yield Fault(
            f"{where}.items", "is empty", "give the duration of at least one item"
        )
    if batch.t < 0 or any(duration < 0 for duration in batch.items):
        yield Fault(where, "has a time below 0", "write seconds, at least 0")


def _faulty_needs(
    where: str, needs: Mapping[str, Any], gpus: list[_GpuEntry]
) -> Iterator[Fault]:
    for name, value in needs.items():
        if value is not None and value < 0:
            yield Fault(
                f"{where}.{name}", f"is {value:g}", "write a number of at least 0"
            )
    largest = max((gpu.memory_gb for gpu in gpus), default=0.0)
    if needs["memory_gb"] > largest:
        yield Fault(
            f"{where}.memory_gb",
            f"is {needs['memory_gb']:g}, and the largest GPU has {largest:g}",
            "give it less, or add a larger GPU",
        )


def _faulty_arrival(
    where: str, arrival: _ArrivalEntry, file: _WorkloadFile
) -> Iterator[Fault]:
    if arrival.kind not in ("llm", "script"):
        yield Fault(f"{where}.class", f"is {arrival.kind!r}", "write llm or script")
    elif arrival.kind == "llm" and arrival.model not in file.models:
        yield _unknown(f"{where}.model", arrival.model, file.models)
    elif arrival.kind == "script" and arrival.script not in file.scripts:
        yield _unknown(f"{where}.script", arrival.script, file.scripts)
    if arrival.t < 0 or arrival.duration_s < 0:
        yield Fault(where, "has a time below 0", "write seconds, at least 0")


def _unknown(
    where: str, name: str | None, known: Mapping[str, Any] | list[str]
) -> Fault:
    return Fault(
        where,
        f"is {name!r}" if name else "is missing",
        f"use one of: {', '.join(known) or 'none is named'}",
    )
