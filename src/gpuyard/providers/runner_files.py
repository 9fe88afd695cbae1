"""Reads the files that `node/runner/` writes into an attempt's folder.

The job can write there too, so these files may hold anything. What is read from them is
complete and of the right kind, or it is a `BrokenFileError`, which says which file is
wrong and ends that attempt only.
"""

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, cast

import msgspec

from gpuyard.domain.errors import ProviderError
from gpuyard.domain.jobconfig import JobResult, JobStatus
from gpuyard.domain.reasons import Reason
from gpuyard.storage.untrusted import UntrustedFileError

MAX_BYTES = 1 << 20
"""More than any of these files holds."""
_MAX_TEXT = 2000
_FOLDER = "the folder of the attempt"
Content = bytes | UntrustedFileError
"""What a file holds, or why it was not read."""
Model = TypeVar("Model")

# The year 2100: a later time is no time, and no calendar can show a much later one.
_Time = Annotated[float, msgspec.Meta(ge=0, le=4_102_444_800)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=4e9)]
_Amount = Annotated[float, msgspec.Meta(ge=-1e18, le=1e18)]
_Code = Annotated[int, msgspec.Meta(ge=-128, le=255)]
_Step = Annotated[int, msgspec.Meta(ge=0, lt=10**15)]
_Size = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_Names = Annotated[tuple[str, ...], msgspec.Meta(max_length=1024)]
_Usage = Annotated[dict[str, _Amount], msgspec.Meta(max_length=64)]


class BrokenFileError(ProviderError):
    """A file of an attempt cannot be read, or does not hold what it should.

    `place` is the folder, or whatever else it belongs to.
    """

    def __init__(self, name: str, fault: object, place: str = _FOLDER) -> None:
        message = f"{name} in {place} is broken: {plain(str(fault))}"
        super().__init__(message, error_code="BROKEN_FILE")

    def result(self, job_id: str) -> JobResult:
        """The end of the job that has this file."""
        return JobResult(
            job_id,
            JobStatus.FAILED,
            completed_at=time.time(),
            reason=Reason.BROKEN_FILE,
            error_message=str(self),
        )


class KeptLimits(msgspec.Struct, frozen=True):
    """The limits of an attempt, as a provider keeps them with it. Times in seconds."""

    timeout_s: _Seconds | None = None
    grace_s: _Seconds | None = None
    signal: str | None = None
    every_s: _Seconds | None = None
    path: str | None = None


class RunnerStart(msgspec.Struct, frozen=True):
    """`started.json`: when it began (UTC seconds) and where."""

    at: _Time
    host: str = ""
    gpus: _Names = ()


class RunnerProcesses(msgspec.Struct, frozen=True):
    """`processes.json`: those that the program has had, on the host of this name."""

    host: Annotated[str, msgspec.Meta(min_length=1)]
    pids: frozenset[int]


class _End(msgspec.Struct, frozen=True):
    """`exit.json`. Times are UTC seconds; `ran_s` is measured by a monotonic clock."""

    exit_code: _Code | None
    reason: str | None = None
    message: str | None = None
    started_at: _Time | None = None
    ended_at: _Time | None = None
    ran_s: _Seconds | None = None
    host: str | None = None
    gpus: _Names | None = None
    usage: _Usage | None = None


class _Saved(msgspec.Struct, frozen=True):
    """An entry of `checkpoints.json`."""

    path: str
    at: _Time
    file: str
    directory: bool
    size: _Size
    step: _Step | None = None


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """A checkpoint that the runner has copied to the file or folder `file`.

    `path` is its name for people, `at` in UTC seconds, `size` in bytes.
    """

    path: str
    step: int | None
    at: float
    file: str
    directory: bool
    size: int


def read_json(data: Content | None) -> dict[str, Any]:
    """A file that only helps: empty when it is missing, incomplete or no object."""
    if data is None or isinstance(data, UntrustedFileError):
        return {}
    try:
        found = json.loads(data or b"{}")
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def read_grace(order: Content | None) -> float:
    """The grace time in `order.json` in seconds; 0 when there is none."""
    try:
        return msgspec.convert(read_json(order), KeptLimits).grace_s or 0.0
    except (msgspec.ValidationError, RecursionError, OverflowError):
        return 0.0


def read_start(data: Content | None) -> RunnerStart | None:
    """`started.json`; None when it is missing, or empty. BrokenFileError."""
    if not data:
        return None
    start = _read("started.json", data, RunnerStart)
    gpus = tuple(plain(gpu) for gpu in start.gpus)
    return RunnerStart(start.at, plain(start.host), gpus)


def read_processes(data: Content | None) -> RunnerProcesses | None:
    """`processes.json`; None when it is missing, or empty. BrokenFileError."""
    return _read("processes.json", data, RunnerProcesses) if data else None


def read_end(job_id: str, data: Content) -> JobResult:
    """How the job ended, from `exit.json`; BrokenFileError."""
    return _result(job_id, _read("exit.json", data, _End))


def read_limits(text: str, place: str) -> KeptLimits:
    """The limits that a provider has kept in a label; BrokenFileError."""
    return _read("limits", text.encode(errors="replace"), KeptLimits, place)


def read_exit(job_id: str, end: Mapping[str, Any]) -> JobResult:
    """How the job ended, from the object in `exit.json`. A job that has broken the
    file has failed.
    """
    try:
        return _result(job_id, _converted("exit.json", dict(end), _End))
    except BrokenFileError as error:
        return error.result(job_id)


def read_checkpoints(data: Content | None) -> list[SavedCheckpoint]:
    """`checkpoints.json`, oldest first; BrokenFileError."""
    if not data:
        return []
    name = "checkpoints.json"
    saved: list[SavedCheckpoint] = []
    for item in _read(name, data, list[_Saved]):
        if not _is_file_name(item.file):
            raise BrokenFileError(name, f"{item.file!r} is no name of a file")
        saved.append(
            SavedCheckpoint(
                plain(item.path),
                item.step,
                item.at,
                item.file,
                item.directory,
                item.size,
            )
        )
    return saved


def plain(text: str) -> str:
    """Text that every database and terminal can take, and not too long."""
    whole = (
        text[:_MAX_TEXT].encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    )
    return "".join(
        sign if sign.isprintable() or sign in "\n\t" else "\ufffd" for sign in whole
    )


def _is_file_name(name: str) -> bool:
    """Whether it names something in a folder, and nothing outside of it."""
    try:
        text = os.fsencode(name)
    except UnicodeEncodeError:
        return False
    is_plain = b"/" not in text and b"\0" not in text
    return is_plain and text not in (b"", b".", b"..") and len(text) <= 255


def _result(job_id: str, end: _End) -> JobResult:
    reason = plain(end.reason or "")
    if reason == Reason.CANCELLED:
        status = JobStatus.CANCELLED
    elif end.exit_code == 0 and not reason:
        status = JobStatus.COMPLETED
    else:
        status = JobStatus.FAILED
    usual_message = "timed out" if reason == Reason.TIMED_OUT else reason
    usage = {plain(name): value for name, value in (end.usage or {}).items()}
    return JobResult(
        job_id,
        status,
        started_at=end.started_at,
        completed_at=end.ended_at,
        ran_s=end.ran_s,
        exit_code=end.exit_code,
        error_message=plain(end.message or "") or usual_message or None,
        reason=reason,
        node=plain(end.host or ""),
        gpus=tuple(plain(gpu) for gpu in end.gpus or ()),
        usage=usage,
    )


def _read(name: str, data: Content, model: type[Model], place: str = _FOLDER) -> Model:
    if isinstance(data, UntrustedFileError):
        raise BrokenFileError(name, data, place)
    try:
        found = json.loads(data, parse_constant=_refuse)
    except ValueError as error:
        raise BrokenFileError(name, f"it is not JSON: {error}", place) from None
    except RecursionError:
        raise BrokenFileError(name, "it is nested too deeply", place) from None
    return _converted(name, found, model, place)


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no number")


def _converted(
    name: str, found: Any, model: type[Model], place: str = _FOLDER
) -> Model:
    try:
        return msgspec.convert(found, model)
    except (msgspec.ValidationError, RecursionError, OverflowError) as error:
        raise BrokenFileError(name, error, place) from None
