"""What `pyproject.toml` and `uv.lock` ask for that cannot be had on a node."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, cast

from gpuyard.domain.errors import InvalidInputError

_FIELD = "packages"
_LOCAL = ("path", "directory", "editable", "virtual")
_OWN = "."


def check_project(path: str, text: str, *, needs_dependencies: bool) -> None:
    """InvalidInputError unless the text is a `pyproject.toml` whose packages come from
    an index; `needs_dependencies`: and names them itself.
    """
    document = _parsed(path, text)
    project = _table(document, "project")
    sources = _table(_table(_table(document, "tool"), "uv"), "sources")
    for name, source in sources.items():
        if isinstance(source, Mapping) and "path" in source:
            _refuse_local(path, text, name)
    if not needs_dependencies:
        return
    if "dependencies" in cast("Sequence[str]", project.get("dynamic") or ()):
        fault = f"{path}:{_line_of(text, 'dynamic')} leaves dependencies to its build"
        remedy = "write them down, or name a requirements.txt"
        raise InvalidInputError.of(_FIELD, fault, remedy)
    if "dependencies" not in project:
        fault = f"{path} has no [project] dependencies"
        remedy = "name a requirements.txt: `poetry export` and `pdm export` write one"
        raise InvalidInputError.of(_FIELD, fault, remedy)


def python_of_project(text: str) -> str:
    """Which versions of Python a `pyproject.toml` allows; empty for any."""
    allowed = _table(_parsed("pyproject.toml", text), "project").get("requires-python")
    return allowed if isinstance(allowed, str) else ""


def check_lock(path: str, text: str) -> str:
    """Which versions of Python a `uv.lock` is for; InvalidInputError if one of its
    packages is a folder other than that of the project.
    """
    document = _parsed(path, text)
    packages: Any = document.get("package") or []
    for package in packages:
        source: Any = package.get("source") or {}
        places = [source[kind] for kind in _LOCAL if kind in source]
        if any(place != _OWN for place in places):
            _refuse_local(path, text, str(package.get("name")))
    allowed = document.get("requires-python")
    return allowed if isinstance(allowed, str) else ""


def _refuse_local(path: str, text: str, name: str) -> None:
    fault = (
        f"{path}:{_line_of(text, name)} takes {name} from a folder of yours, which"
        " nodes do not have"
    )
    remedy = "take it from an index, or put its code into the folder of the job"
    raise InvalidInputError.of(_FIELD, fault, remedy)


def _parsed(path: str, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        fault = f"{path} is not valid TOML: {error}"
        raise InvalidInputError.of(_FIELD, fault, "correct it") from None


def _table(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = document.get(name)
    return cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else {}


def _line_of(text: str, word: str) -> int:
    """The number of the first line with a word; 1 if there is none."""
    pattern = re.compile(rf"(?<![\w-]){re.escape(word)}(?![\w-])")
    found = pattern.search(text)
    return text.count("\n", 0, found.start()) + 1 if found else 1
