"""Templates: folders to start from. Each folder beside this file is one; it knows nothing of gpuyard and runs alone."""

import difflib
import shutil
from pathlib import Path

_FOLDER = Path(__file__).parent
_NOT_COPIED = {"__pycache__", "out"}


class UnknownTemplateError(LookupError):
    """No template has that name; the message lists those there are, and the nearest."""

    def __init__(self, name: str) -> None:
        known = names()
        nearest = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {nearest[0]}?" if nearest else ""
        super().__init__(f"no template is called {name!r}; there is {', '.join(known)}{hint}")
        self.name = name


def names() -> list[str]:
    """The templates' names, in order."""
    return sorted(readme.parent.name for readme in _FOLDER.glob("*/README.md"))


def describe(name: str) -> str:
    """What the template is, in one line: the title of its README. UnknownTemplateError if there is none."""
    with (_find(name) / "README.md").open(encoding="utf-8") as readme:
        return readme.readline().lstrip("#").strip()


def write(name: str, directory: Path) -> list[Path]:
    """Copy the template's files into `directory`, made if need be; the files written, in order.

    UnknownTemplateError if there is no such template; FileExistsError, with nothing written, if `directory` is a file
    or holds anything already.
    """
    source = _find(name)
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise FileExistsError(f"{directory} is not empty: name a new or an empty directory")
    files = sorted(file for file in source.iterdir() if file.name not in _NOT_COPIED)
    return [Path(shutil.copyfile(file, directory / file.name)) for file in files]


def _find(name: str) -> Path:
    if name not in names():
        raise UnknownTemplateError(name)
    return _FOLDER / name
