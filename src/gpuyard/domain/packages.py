"""The packages that a program needs: the files in which a person names them, checked,
and what a node builds from.
"""

import posixpath
import re
from collections.abc import Mapping
from enum import StrEnum

import msgspec

from gpuyard.domain.conda import pip_part
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.packages_field import LIKELY
from gpuyard.domain.project_files import check_lock, check_project, python_of_project

LOCK = "uv.lock"
PROJECT = "pyproject.toml"
PYTHON_VERSION = ".python-version"
MAX_BYTES = 4_000_000
_REQUIREMENTS = "requirements.txt"
_CONDA = (".yml", ".yaml")
_TEXTS = (".txt", ".in", ".lock", ".pip")
# Blanks only: with line ends, a file of empty lines would take quadratic time.
_INCLUDES = re.compile(
    r"^[ \t]*(?:-[ \t]+)?(?:-r|-c|--requirement|--constraint)[ \t=]*(\S+)",
    re.MULTILINE,
)
# A reader of TOML takes quadratic time for the parts of one key.
_LONGEST_LINE = 20_000
_EDITABLE = re.compile(r"(-e|--editable)(\s|=|$)")
_FIND_LINKS = re.compile(r"(?:-f|--find-links)[ \t=]+(\S+)")
_FIELD = "packages"


class PackageKind(StrEnum):
    """How the packages are named: a lock of uv, requirements as pip reads them, or the
    dependencies of a project.
    """

    LOCK = "uv.lock"
    REQUIREMENTS = "requirements.txt"
    PROJECT = "pyproject.toml"


class PackageList(msgspec.Struct, frozen=True):
    """What a node builds an environment from.

    `source` is the file that a person named; `files` are texts by their path. `python`
    says which versions of Python suit, as uv reads it; empty for any. Only jobs of
    `user` may have the environment.
    """

    source: str
    kind: PackageKind
    files: dict[str, str]
    python: str = ""
    user: str = ""


def included_files(main: str, text: str) -> list[str]:
    """The paths of the files that a file of requirements includes, relative to the
    folder of the first one. InvalidInputError if one is elsewhere.
    """
    folder = posixpath.dirname(main)
    found: list[str] = []
    for match in _INCLUDES.finditer(text):
        path = posixpath.normpath(posixpath.join(folder, match[1]))
        if path.startswith(("..", "/")) or "://" in match[1]:
            line = text.count("\n", 0, match.start(1)) + 1
            fault = f"{main}:{line} includes {match[1]}, which is outside its folder"
            raise InvalidInputError.of(_FIELD, fault, "copy it into the folder")
        found.append(path)
    return found


def files_beside(main: str) -> tuple[str, ...]:
    """The files that belong to a file, where they are there."""
    name = posixpath.basename(main)
    return (PROJECT, PYTHON_VERSION) if name == LOCK else (PYTHON_VERSION,)


def read_packages(
    main: str, files: Mapping[str, str], user: str | None = None
) -> PackageList:
    """The packages that the file `main` names; `files` are the texts of all that
    belongs to it, by path. InvalidInputError names the line of what cannot be had.
    """
    if main not in files:
        raise InvalidInputError.of(_FIELD, f"there is no {main}", "check the path")
    size = sum(len(text) for text in files.values())
    if size > MAX_BYTES:
        fault = f"{main} and what belongs to it are {size / 1e6:.1f} MB"
        remedy = f"at most {MAX_BYTES / 1e6:.0f} MB are read; name packages, not files"
        raise InvalidInputError.of(_FIELD, fault, remedy)
    _refuse_long_lines(files)
    name = posixpath.basename(main)
    wanted = _wanted_python(files)
    if name == LOCK:
        (kind, kept, python) = _from_lock(main, files)
    elif name.endswith(".toml"):
        (kind, kept, python) = _from_project(main, files)
    elif name.endswith(_CONDA):
        (kind, kept, python) = _from_conda(main, files)
    elif name.endswith(_TEXTS):
        kept = _requirements(main, files)
        kind = PackageKind.REQUIREMENTS
        python = ""
    else:
        fault = f"{main} is no file that names packages"
        raise InvalidInputError.of(_FIELD, fault, f"name one such as {LIKELY[1]}")
    return PackageList(main, kind, kept, wanted or python, user or "")


def _refuse_long_lines(files: Mapping[str, str]) -> None:
    for path, text in files.items():
        lengths = [len(line) for line in text.split("\n")]
        if max(lengths) <= _LONGEST_LINE:
            continue
        number = lengths.index(max(lengths)) + 1
        fault = f"{path}:{number} has {max(lengths)} characters"
        remedy = f"write lines of at most {_LONGEST_LINE} characters"
        raise InvalidInputError.of(_FIELD, fault, remedy)


_Found = tuple[PackageKind, dict[str, str], str]


def _from_lock(main: str, files: Mapping[str, str]) -> _Found:
    project = posixpath.join(posixpath.dirname(main), PROJECT)
    if project not in files:
        fault = f"there is no {PROJECT} beside {main}"
        raise InvalidInputError.of(_FIELD, fault, "`uv lock` needs one, too")
    check_project(project, files[project], needs_dependencies=False)
    python = check_lock(main, files[main])
    kept = {LOCK: files[main], PROJECT: files[project]}
    return PackageKind.LOCK, kept, python


def _from_project(main: str, files: Mapping[str, str]) -> _Found:
    check_project(main, files[main], needs_dependencies=True)
    python = python_of_project(files[main])
    return PackageKind.PROJECT, {PROJECT: files[main]}, python


def _from_conda(main: str, files: Mapping[str, str]) -> _Found:
    (lines, python) = pip_part(main, files[main])
    requirements = posixpath.join(posixpath.dirname(main), f"{main}.pip.txt")
    texts = {**files, requirements: "".join(f"{line}\n" for line in lines)}
    return PackageKind.REQUIREMENTS, _requirements(requirements, texts), python


def _requirements(main: str, files: Mapping[str, str]) -> dict[str, str]:
    """The texts of the requirements by path, the first one as `requirements.txt`."""
    kept: dict[str, str] = {}
    waiting = [main]
    while waiting:
        path = waiting.pop()
        if path in kept:
            continue
        if path not in files:
            fault = f"there is no {path}, which {main} includes"
            raise InvalidInputError.of(_FIELD, fault, "check the path")
        kept[path] = files[path]
        _check_requirements(path, files[path])
        waiting += included_files(path, files[path])
    if main == _REQUIREMENTS:
        return kept
    kept.setdefault(_REQUIREMENTS, f"-r {main}\n")
    return kept


def _check_requirements(path: str, text: str) -> None:
    for number, line in enumerate(text.splitlines(), 1):
        wanted = line.split(" #")[0].strip()
        where = f"{path}:{number} `{wanted[:80]}`"
        if _EDITABLE.match(wanted) or wanted.startswith("."):
            raise InvalidInputError.of(
                _FIELD,
                f"{where} installs what is in your folder, which nodes do not have",
                "remove the line: a job finds the code of its folder there; name the"
                " packages that this one needs",
            )
        links = _FIND_LINKS.match(wanted)
        if links and not links[1].startswith("/") and "://" not in links[1]:
            fault = f"{where} names a folder by a relative path"
            raise InvalidInputError.of(_FIELD, fault, "write the whole path")


def _wanted_python(files: Mapping[str, str]) -> str:
    """The version in `.python-version`; empty without one."""
    for path, text in files.items():
        if posixpath.basename(path) != PYTHON_VERSION:
            continue
        for line in text.splitlines():
            if line.strip() and not line.startswith("#"):
                return line.strip()
    return ""
