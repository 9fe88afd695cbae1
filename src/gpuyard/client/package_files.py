"""The files that name the packages of a program: found beside it, and read, to be
stored before its jobs are submitted.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from gpuyard.client.calls import Call
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.packages_field import AUTO, LIKELY, NONE, SHA256

_FIELD = "packages"


def likely_file(folder: Path) -> Path | None:
    """The file of a folder that names packages, if there is one."""
    return next((folder / name for name in LIKELY if (folder / name).is_file()), None)


def files_named(bodies: Sequence[Any]) -> list[Path]:
    """The files that name the packages of these jobs, each once; InvalidInputError."""
    found = [file for body in bodies if (file := _file_of(body))]
    return list(dict.fromkeys(found))


def with_packages(bodies: Sequence[Any], digests: Mapping[Path, str]) -> list[Any]:
    """`bodies`, each with the digest of the list that it names."""
    return [_filled_in(body, digests) for body in bodies]


def store(file: Path) -> Call[str]:
    """Store what a file names; InvalidInputError if it cannot be read."""
    from gpuyard.domain.packages import files_beside, included_files

    texts: dict[str, str] = {}
    waiting = [file.name]
    while waiting:
        path = waiting.pop(0)
        if path in texts:
            continue
        texts[path] = _text(file.parent / path)
        waiting += included_files(path, texts[path])
    for name in files_beside(file.name):
        if name not in texts and (file.parent / name).is_file():
            texts[name] = _text(file.parent / name)
    body = {"main": file.name, "files": texts}
    path = "/api/v1/packages"
    return Call("POST", path, _digest, body=body, done_once=True, submits=True)


def _digest(answer: Any) -> str:
    return str(answer["digest"])


def _file_of(body: Any) -> Path | None:
    """The file that a job names; None if it names none, or a stored list."""
    if not isinstance(body, Mapping):
        return None
    given = cast("Mapping[str, Any]", body)
    named: Any = given.get(_FIELD)
    if not isinstance(named, str) or named == NONE or SHA256.fullmatch(named):
        return None
    workdir: Any = given.get("workdir")
    folder = Path(workdir) if isinstance(workdir, str) else Path.cwd()
    place = folder if named == AUTO else folder / named
    if not place.is_dir():
        return place
    found = likely_file(place)
    if found is None:
        fault = f"{place} has no file that names packages"
        remedy = f"it looks for {', '.join(LIKELY)}; name another with its path"
        raise InvalidInputError.of(_FIELD, fault, remedy)
    return found


def _filled_in(body: Any, digests: Mapping[Path, str]) -> Any:
    file = _file_of(body)
    if file is not None:
        return {**body, _FIELD: digests[file]}
    if not isinstance(body, Mapping):
        return body
    given = cast("Mapping[str, Any]", body)
    if given.get(_FIELD) != NONE:
        return given
    return {name: value for name, value in given.items() if name != _FIELD}


def _text(path: Path) -> str:
    from gpuyard.domain.packages import MAX_BYTES

    try:
        if path.stat().st_size > MAX_BYTES:
            fault = f"{path} is larger than {MAX_BYTES / 1e6:.0f} MB"
            raise InvalidInputError.of(_FIELD, fault, "name a file of names")
        return path.read_bytes().decode()
    except OSError as error:
        fault = f"{path} cannot be read: {error.strerror}"
        raise InvalidInputError.of(_FIELD, fault, "check the path") from None
    except UnicodeDecodeError:
        fault = f"{path} is not UTF-8 text"
        raise InvalidInputError.of(_FIELD, fault, "name a text file") from None
