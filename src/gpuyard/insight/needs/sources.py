"""The files of a program: their texts, and their syntax trees, each parsed once."""

# The values of a followed program can be anything.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import ast
import json
import re
import warnings
from collections.abc import Mapping
from typing import Any, cast

from gpuyard.domain.errors import InvalidInputError
from gpuyard.insight.needs.tools import program_of_tool

# Characters; nobody writes a longer program by hand.
LONGEST_FILE = 1_000_000
# Commands of IPython, which may go on behind a backslash; and questions for help.
_MAGIC = re.compile(
    r"^([ \t]*)(%%\w+.*|(?:%(?=\w)|!(?!=))(?:.*\\\n)*.*"
    r"|\?{1,2}[\w.]+[ \t]*|[\w.]+\?{1,2}[ \t]*)$",
    re.MULTILINE,
)
# `names = !ls` and `time = %timeit …`.
_TAKEN = re.compile(r"^([ \t]*[\w., \t]+=[ \t]*)[!%](?:.*\\\n)*.*$", re.MULTILINE)
# Characters of all modules together: what is parsed in about two seconds.
_MOST_PARSED = 3_000_000
_MOST_CELLS = 1_000
_LONGEST_MAGIC = 2_000
_PYTHON_2 = re.compile(
    r"^[ \t]*(print[ \t]+[^(=\s]|exec[ \t]+[\"']|except \w+, \w+:)", re.MULTILINE
)


class Sources:
    """The texts of a program's files by their paths, with `/` between folders.

    `entry` is the file that is run.
    """

    def __init__(self, texts: Mapping[str, str], entry: str) -> None:
        self.entry = entry
        self._texts = texts
        self._trees: dict[str, ast.Module | None] = {}
        self._left = _MOST_PARSED
        self._modules = {_module_name(path): path for path in texts if _is_code(path)}

    def entry_tree(self) -> ast.Module:
        """The syntax tree of the entry; InvalidInputError says why there is none."""
        text = self._texts[self.entry]
        if "\0" in text:
            fault = "is not text"
            raise InvalidInputError.of(self.entry, fault, "name a Python program")
        code = _python_of(self.entry, text)
        if len(code) > LONGEST_FILE:
            fault = f"is longer than {LONGEST_FILE:,} characters"
            remedy = "name the program itself, without its data"
            raise InvalidInputError.of(self.entry, fault, remedy)
        try:
            return _parse(code)
        except SyntaxError as error:
            is_notebook = self.entry.endswith(".ipynb")
            cells = _whole_cells(self.entry, text) if is_notebook else None
            if cells is not None:
                return cells
            raise _bad_syntax(self.entry, code, error) from None
        except (ValueError, RecursionError, MemoryError):
            fault = "cannot be parsed: it is nested too deeply"
            remedy = "check that Python itself can read it"
            raise InvalidInputError.of(self.entry, fault, remedy) from None

    def tree(self, path: str) -> ast.Module | None:
        """The syntax tree of a file; None for one that cannot be parsed."""
        if path not in self._trees:
            self._trees[path] = self._parsed(path)
        return self._trees[path]

    @property
    def is_cut(self) -> bool:
        """Whether modules are left out, because all together are too long."""
        return self._left < 0

    def module(self, name: str, importer: str, level: int = 0) -> str | None:
        """The path of the module that `importer` means by a name, with so many leading
        dots; None for one of a library.
        """
        folder = importer.rpartition("/")[0].replace("/", ".")
        if level:
            parts = folder.split(".") if folder else []
            kept = parts[: len(parts) - (level - 1)] if level > 1 else parts
            return self._modules.get(".".join([*kept, *([name] if name else [])]))
        beside = f"{folder}.{name}" if folder else name
        for candidate in (beside, name, f"src.{name}"):
            if candidate in self._modules:
                return self._modules[candidate]
        return None

    def text(self, path: str) -> str | None:
        """The text of a file that the program names; None if it is not there."""
        wanted = path.removeprefix("./")
        folder = self.entry.rpartition("/")[0]
        for candidate in (wanted, f"{folder}/{wanted}" if folder else wanted):
            if candidate in self._texts:
                return self._texts[candidate]
        return None

    def paths(self) -> list[str]:
        """The paths of all files."""
        return list(self._texts)

    def _parsed(self, path: str) -> ast.Module | None:
        text = self._texts.get(path, "")
        if len(text) > LONGEST_FILE or "\0" in text:
            return None
        self._left -= len(text)
        if self.is_cut:
            return None
        try:
            return _parse(_python_of(path, text))
        except (
            SyntaxError,
            ValueError,
            RecursionError,
            MemoryError,
            InvalidInputError,
        ):
            return None


def _is_code(path: str) -> bool:
    return path.endswith((".py", ".ipynb"))


def _module_name(path: str) -> str:
    name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return "" if name == "__init__" else name


def _parse(text: str) -> ast.Module:
    with warnings.catch_warnings():
        # Warnings about the user's code do not belong in our output.
        warnings.simplefilter("ignore")
        return ast.parse(text.removeprefix("\ufeff"))


def _python_of(path: str, text: str) -> str:
    """The Python code of a file: of a notebook, that of its cells, without its magic
    commands.
    """
    if not path.endswith(".ipynb"):
        return text
    return "\n".join(map(_without_magic, _cells(path, text)))


def _without_magic(cell: str) -> str:
    """The Python code of a cell: none of one in another language, as after `%%bash`."""
    code = _TAKEN.sub(lambda found: f"{found[1]}None", _MAGIC.sub(_of_magic, cell))
    if not cell.lstrip().startswith("%%") or len(cell) > LONGEST_FILE:
        return code
    try:
        _parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "\n" * cell.count("\n")
    return code


def _whole_cells(path: str, text: str) -> ast.Module | None:
    """A notebook without the cells that are no Python, such as those that a reader of a
    course has to complete; None if there is no other.
    """
    found = ast.Module([], [])
    before = 0
    for cell in _cells(path, text)[:_MOST_CELLS]:
        try:
            tree = _parse(_MAGIC.sub(_of_magic, cell))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            tree = ast.Module([], [])
        found.body += ast.increment_lineno(tree, before).body
        before += cell.count("\n") + 1
    return found if found.body else None


def _of_magic(found: re.Match[str]) -> str:
    """What is read in place of a magic command: `!yolo train …` trains a model."""
    line = found[2].removeprefix("!").replace("\\\n", " ")
    words = line.split() if len(line) < _LONGEST_MAGIC else []
    program = program_of_tool(words) if found[2].startswith("!") else None
    following = "; ".join((program or "pass").splitlines())
    lines = "\n" * found[2].count("\n")
    return f"{found[1]}{following}{lines}"


def _cells(path: str, text: str) -> list[str]:
    remedy = "save the notebook again in Jupyter"
    try:
        notebook: Any = json.loads(text)
    except (ValueError, RecursionError):
        fault = "is not a notebook: it is no JSON"
        raise InvalidInputError.of(path, fault, remedy) from None
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list):
        raise InvalidInputError.of(path, "is a notebook without cells", remedy)
    found = [
        _joined(cell.get("source"))
        for cell in cast("list[Any]", cells)
        if isinstance(cell, dict) and cell.get("cell_type") == "code"
    ]
    if not any(cell.strip() for cell in found):
        raise InvalidInputError.of(path, "is a notebook without code", "name another")
    return found


def _joined(source: Any) -> str:
    if isinstance(source, list):
        return "".join(str(line) for line in cast("list[Any]", source))
    return source if isinstance(source, str) else ""


def _bad_syntax(path: str, text: str, error: SyntaxError) -> InvalidInputError:
    if _PYTHON_2.search(text):
        fault = "is written for Python 2"
        return InvalidInputError.of(path, fault, "convert it to Python 3")
    fault = f"is not valid Python: line {error.lineno}: {error.msg}"
    return InvalidInputError.of(path, fault, "correct the line")
