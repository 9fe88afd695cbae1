"""Templates: folders to start from. Each folder beside this file is one.

Most are programs that know nothing of gpuyard: they run alone, and `gpuyard run` runs
them by name. The files of the folder `shared` belong to all that import them. The
others are packages, which are installed beside gpuyard. A package gets a name of its
own, which replaces the placeholder in its files.
"""

import difflib
import re
import shutil
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path

_FOLDER = Path(__file__).parent
_NOT_COPIED = {"__pycache__", "out", ".pytest_cache"}
# The packages, and the name that each stands under here, as a module and as the
# beginning of a class.
_PLACEHOLDERS: Mapping[str, tuple[str, str]] = {"provider": ("mycloud", "MyCloud")}
_SHARED = _FOLDER / "shared"
_IMPORT = re.compile(r"^ *from (\w+) import ", re.MULTILINE)
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_LONGEST = 40
# They say how to run a program, and are no part of it.
_ABOUT = {"README.md", "job.toml", "job.gpu.toml"}


class UnknownTemplateError(LookupError):
    """There is no template of that name; the message names the known ones."""

    def __init__(self, name: str) -> None:
        known = all_names()
        nearest = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {nearest[0]}?" if nearest else ""
        super().__init__(
            f"no template is called {name!r}; there is {', '.join(known)}{hint}"
        )
        self.name = name


class BadNameError(ValueError):
    """A package's name is not allowed: `fault` says why, `remedy` what would be."""

    def __init__(self, fault: str, remedy: str) -> None:
        super().__init__(f"{fault}; {remedy}")
        self.fault = fault
        self.remedy = remedy


def names() -> list[str]:
    """The programs, in order: `gpuyard run NAME` runs them."""
    return [name for name in all_names() if name not in _PLACEHOLDERS]


def all_names() -> list[str]:
    """The templates' names, in order."""
    return sorted(readme.parent.name for readme in _FOLDER.glob("*/README.md"))


def is_package(name: str) -> bool:
    """Return whether the template is a package, which gets a name of its own."""
    return name in _PLACEHOLDERS


def describe(name: str) -> str:
    """Return the title of the template's README; UnknownTemplateError without one."""
    with (_find(name) / "README.md").open(encoding="utf-8") as readme:
        return readme.readline().lstrip("#").strip()


def job_file(name: str) -> Path:
    """Return the job file of a program; UnknownTemplateError."""
    return _find(name) / "job.toml"


def program_files(name: str) -> dict[str, bytes]:
    """Return the files of a program by path, as `write` would write them, but for those
    that only say how to run it; UnknownTemplateError.
    """
    source = _find(name)
    own = {str(file.relative_to(source)): file for file in _files(source)}
    shared = {file.name: file for file in _shared_files(source)}
    return {
        path: file.read_bytes()
        for path, file in sorted((own | shared).items())
        if path not in _ABOUT
    }


def write(name: str, directory: Path, called: str | None = None) -> list[Path]:
    """Copy the template's files into `directory`; return the files written, in order.

    The directory is created if necessary. A package is named `called`, or else as the
    directory. UnknownTemplateError if there is no such template, BadNameError for a
    name that is not allowed, and FileExistsError if `directory` is a file or not empty;
    nothing is written then.
    """
    source = _find(name)
    words = _words(name, called, directory)
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise FileExistsError(
            f"{directory} is not empty: name a new or an empty directory"
        )
    copied = [_copy(file, source, directory, words) for file in _files(source)]
    shared = _shared_files(source)
    copied += [_copy(file, _SHARED, directory, words) for file in shared]
    return sorted(copied)


def _find(name: str) -> Path:
    if name not in all_names():
        raise UnknownTemplateError(name)
    return _FOLDER / name


def _shared_files(source: Path) -> list[Path]:
    """The shared files that the programs in a folder import, also through others."""
    found: set[Path] = set()
    waiting = list(source.glob("*.py"))
    while waiting:
        text = waiting.pop().read_text(encoding="utf-8")
        imported = {_SHARED / f"{name}.py" for name in _IMPORT.findall(text)}
        new = {file for file in imported - found if file.exists()}
        found |= new
        waiting += new
    return sorted(found)


def _files(source: Path) -> list[Path]:
    files = (path for path in source.rglob("*") if path.is_file())
    return sorted(
        file for file in files if _NOT_COPIED.isdisjoint(file.relative_to(source).parts)
    )


def _copy(file: Path, source: Path, directory: Path, words: Mapping[str, str]) -> Path:
    """Copy one file, with `words` replaced in its path and its text."""
    target = directory / _replaced(str(file.relative_to(source)), words)
    target.parent.mkdir(parents=True, exist_ok=True)
    if not words:
        return Path(shutil.copyfile(file, target))
    target.write_text(
        _replaced(file.read_text(encoding="utf-8"), words), encoding="utf-8"
    )
    return target


def _replaced(text: str, words: Mapping[str, str]) -> str:
    for old, new in words.items():
        text = text.replace(old, new)
    return text


def _words(template: str, called: str | None, directory: Path) -> Mapping[str, str]:
    """Return the replacements of the placeholders; BadNameError for a bad name."""
    if template not in _PLACEHOLDERS:
        if called is not None:
            raise BadNameError(f"template {template} has none", "leave --name out")
        return {}
    name = directory.resolve().name if called is None else called
    if not _NAME.fullmatch(name) or len(name) > _LONGEST:
        raise BadNameError(
            f"{name[:60]!r} cannot be the name of a provider",
            "lower-case letters, digits and single _ between them, a letter first,"
            f" {_LONGEST} at most, such as my_cloud",
        )
    if name in {point.name for point in entry_points(group="gpuyard.providers")}:
        raise BadNameError(
            f"a provider called {name!r} is installed",
            "choose another name, or uninstall that one",
        )
    module, kind = _PLACEHOLDERS[template]
    return {module: name, kind: "".join(word.capitalize() for word in name.split("_"))}
