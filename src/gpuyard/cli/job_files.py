"""Job files: TOML, YAML or JSON, with one job or several."""

import json
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from gpuyard.cli.foreign_jobs import from_batch_script, from_task, has_sbatch_lines
from gpuyard.cli.interpreters import with_interpreter
from gpuyard.domain.errors import Fault, InvalidInputError

_SEVERAL = "jobs"
# Standard input has no suffix.
_YAML = (".yaml", ".yml", "")


@dataclass(frozen=True, slots=True)
class FileJob:
    """A job of a file: its body, how errors name it, what people should know of it, and
    whether words behind the file are its arguments.
    """

    body: Any
    label: str
    notes: Sequence[str] = ()
    takes_arguments: bool = False


def load_spec(path: Path) -> Any:
    """What a .toml, .yaml or .json file holds, or standard input (JSON or YAML) for
    `-`; InvalidInputError says what is wrong with it.
    """
    return _document(_text(path), path)


def _text(path: Path) -> str:
    try:
        return sys.stdin.read() if str(path) == "-" else path.read_text()
    except OSError as error:
        raise InvalidInputError.of(
            str(path), f"cannot be read: {error.strerror}", "check the path"
        ) from None
    except UnicodeDecodeError:
        raise InvalidInputError.of(
            str(path), "is not valid: it is not UTF-8 text", "check the path"
        ) from None


def _document(text: str, path: Path) -> Any:
    try:
        return _parsed(text, path.suffix)
    except (ValueError, RecursionError) as error:
        remedy = "`gpuyard run` runs a program; a job file needs at least `command`"
        raise InvalidInputError.of(
            str(path), f"is not valid: {error}", remedy
        ) from None


def _parsed(text: str, suffix: str) -> Any:
    """The content of a file; ValueError."""
    if suffix == ".toml":
        import tomllib

        return tomllib.loads(text)
    if suffix == ".json":
        return json.loads(text)
    if suffix not in _YAML:
        raise ValueError("its name ends neither in .toml, .yaml, .yml nor .json")
    import yaml  # which reads JSON as well

    try:
        documents = list(yaml.safe_load_all(text))
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    return documents[0] if len(documents) == 1 else documents


def read_jobs(path: Path, arguments: Sequence[str] = ()) -> list[FileJob]:
    """The jobs of a file, each in the folder that the file is in unless it says
    otherwise. Files of Slurm and SkyPilot become jobs in the current folder;
    `arguments` are those of a batch script. InvalidInputError.
    """
    text = _text(path)
    if has_sbatch_lines(text):
        found = from_batch_script(text, path, arguments)
        return [FileJob(found.body, str(path), found.notes, takes_arguments=True)]
    document = _document(text, path)
    task = from_task(document, path)
    if task is not None:
        return [FileJob(task.body, str(path), task.notes)]
    bodies = _bodies(document, path)
    home = Path.cwd() if str(path) == "-" else path.absolute().parent
    return [
        FileJob(at_home(body, home), _label(path, number, body))
        for number, body in enumerate(bodies, 1)
    ]


def _bodies(document: Any, path: Path) -> Sequence[Any]:
    """The document's jobs: it is one, a list, or has `jobs` and what these share."""
    if isinstance(document, list):
        return cast("list[Any]", document)
    if not isinstance(document, Mapping) or _SEVERAL not in document:
        return [document]
    shared = dict(cast("Mapping[str, Any]", document))
    jobs = shared.pop(_SEVERAL)
    if not isinstance(jobs, list):
        remedy = "write a table [[jobs]] for each job"
        raise InvalidInputError.of(f"{path}: jobs", "is no list of jobs", remedy)
    return [
        merge(shared, cast("Mapping[str, Any]", job))
        if isinstance(job, Mapping)
        else job
        for job in cast("list[Any]", jobs)
    ]


def _label(path: Path, number: int, body: Any) -> str:
    name: Any = body.get("name") if isinstance(body, Mapping) else None  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    words = f"{path}, job {number}"
    return f"{words} ({name})" if isinstance(name, str) else words


@contextmanager
def naming(jobs: Sequence[FileJob]) -> Generator[None]:
    """Errors of one of several jobs, which the server numbers from 0, name its file and
    its own name instead.
    """
    try:
        yield
    except InvalidInputError as error:
        if len(jobs) == 1:
            raise
        faults = [_named(fault, jobs) for fault in error.faults]
        raise InvalidInputError(faults) from None


def _named(fault: Fault, jobs: Sequence[FileJob]) -> Fault:
    number, _, field = fault.field.partition(".")
    if not number.isdecimal() or int(number) >= len(jobs):
        return fault
    return Fault(f"{jobs[int(number)].label}: {field}", fault.fault, fault.remedy)


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid on `base`, tables within tables too."""
    merged = dict(base)
    for name, value in over.items():
        inner = merged.get(name)
        both = isinstance(inner, Mapping) and isinstance(value, Mapping)
        merged[name] = (
            merge(cast("Mapping[str, Any]", inner), cast("Mapping[str, Any]", value))
            if both
            else value
        )
    return merged


def at_home(body: Any, folder: Path) -> Any:
    """The body with the folder that its file is in, unless it says otherwise."""
    from gpuyard.client.bodies import at_home_here

    if not isinstance(body, dict):
        return body
    given = cast("dict[str, Any]", body)
    if "task_class" in given or "task_id" in given:
        script = given.get("script")
        beside = isinstance(script, str) and (folder / script).is_file()
        return {**given, "script": str(folder / str(script))} if beside else given
    if "gpu_spec" in given or "timeout_minutes" in given:
        return given
    workdir = given.get("workdir", "")
    if isinstance(workdir, str):
        given = {**given, "workdir": str(folder / workdir)}
        given |= _interpreted(given, folder / workdir)
    return at_home_here(given)


def _interpreted(given: Mapping[str, Any], workdir: Path) -> dict[str, Any]:
    """The command with an interpreter in front, if it is a script of the folder."""
    command = given.get("command")
    if not isinstance(command, list) or "image" in given:
        return {}
    words = cast("list[Any]", command)
    if not words or not all(isinstance(word, str) for word in words):
        return {}
    if not (workdir / words[0]).is_file():
        return {}
    return {"command": with_interpreter(words, workdir)}
