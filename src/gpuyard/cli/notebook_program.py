"""Runs the cells of a notebook one after the other, and keeps their output in a copy.

`python3 notebook_program.py NOTEBOOK RESULT [ARGUMENT]…`. What cells print goes to
standard output as well, at once. `--lr 0.1` among the arguments sets `lr` behind the
cell that has the tag `parameters`; all of them are in `sys.argv`. With IPython in this
Python, its own commands (`%`, `!`) and pictures work, too. Otherwise it needs only the
standard library.
"""

import ast
import base64
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO, cast

Json = dict[str, Any]
# Whether a cell was executed without an error.
Execute = Callable[[str, "CellOutput"], bool]
# Characters of one cell; what is printed beyond is in the log of the job alone.
MOST_PRINTED = 1_000_000
BAD_INPUT = 2


class CellOutput:
    """What a cell has shown, in the form of a notebook; `number` counts the cells."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.items: list[Json] = []
        self._left = MOST_PRINTED

    def stream(self, name: str, text: str) -> None:
        """Text that was printed."""
        text = text[: self._left]
        self._left -= len(text)
        last = self.items[-1] if self.items else {}
        if last.get("output_type") == "stream" and last["name"] == name:
            last["text"] += text
        elif text:
            self.items.append({"output_type": "stream", "name": name, "text": text})

    def shown(self, data: dict[str, Any], metadata: dict[str, Any]) -> None:
        """Something that was displayed."""
        self.items.append(
            {
                "output_type": "display_data",
                "data": _as_text(data),
                "metadata": metadata,
            }
        )

    def result(self, data: dict[str, Any], metadata: dict[str, Any]) -> None:
        """The value of the last line."""
        self.items.append(
            {
                "output_type": "execute_result",
                "execution_count": self.number,
                "data": _as_text(data),
                "metadata": metadata,
            }
        )

    def error(self, error: BaseException) -> None:
        """What has ended the cell."""
        self.items.append(
            {
                "output_type": "error",
                "ename": type(error).__name__,
                "evalue": str(error),
                "traceback": traceback.format_exception(error),
            }
        )


class Tee:
    """A stream that also notes what is written."""

    def __init__(self, stream: TextIO, note: Callable[[str], object]) -> None:
        self._stream = stream
        self._note = note

    def write(self, text: str) -> int:
        """Write at once, so that whoever follows the job sees it."""
        self._note(text)
        self._stream.write(text)
        self._stream.flush()
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def say(line: str) -> None:
    """Print a line in the log of the job alone."""
    stream = sys.__stdout__
    if stream:
        stream.write(f"{line}\n")
        stream.flush()


def _as_text(data: dict[str, Any]) -> dict[str, Any]:
    """Data by kind, as JSON can have it."""
    return {
        kind: base64.b64encode(value).decode() if isinstance(value, bytes) else value
        for kind, value in data.items()
    }


# --- executing a cell ---


def plain(module: ModuleType) -> Execute:
    """Execute cells as Python, in the variables of `module`."""

    def execute(source: str, output: CellOutput) -> bool:
        name = f"<cell {output.number}>"
        try:
            tree = ast.parse(source, name)
            value = _last_value(tree, name, module)
        except SyntaxError as error:
            output.error(error)
            traceback.print_exception(error, limit=0)
            if _uses_ipython(source):
                say("It uses IPython: install ipython in the Python of the job.")
            return False
        except BaseException as error:  # noqa: BLE001  (a cell raises anything)
            output.error(error)
            if isinstance(error, SystemExit) and not error.code:
                return True
            traceback.print_exception(error)
            return False
        if value is not None:
            say(repr(value))
            output.result({"text/plain": repr(value)}, {})
        return True

    return execute


def _last_value(tree: ast.Module, name: str, module: ModuleType) -> Any:
    """Execute statements; the value of the last one if it is an expression."""
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        exec(compile(tree, name, "exec"), module.__dict__)  # noqa: S102
        return None
    first = ast.Module(tree.body[:-1], tree.type_ignores)
    exec(compile(first, name, "exec"), module.__dict__)  # noqa: S102
    value = compile(ast.Expression(last.value), name, "eval")
    return eval(value, module.__dict__)  # noqa: S307


def _uses_ipython(source: str) -> bool:
    lines = [line.strip() for line in source.splitlines()]
    return any(line.startswith(("%", "!", "?")) or line.endswith("?") for line in lines)


@dataclass
class Current:
    """The output of the cell that runs."""

    output: CellOutput


def with_ipython(module: ModuleType) -> Execute:
    """Execute cells as IPython does; ImportError without it."""
    config = import_module("traitlets.config").Config
    current = Current(CellOutput(0))
    shell = _shell_class().instance(
        config=config({"HistoryManager": {"enabled": False}}),
        displayhook_class=_hook_class(current),
        display_pub_class=_publisher_class(current),
        user_module=module,
        user_ns=module.__dict__,
    )
    shell.colors = "NoColor"

    def execute(source: str, output: CellOutput) -> bool:
        current.output = output
        done = shell.run_cell(source, store_history=True)
        error = done.error_before_exec or done.error_in_exec
        if error is None or (isinstance(error, SystemExit) and not error.code):
            return True
        output.error(error)
        return False

    return execute


def _shell_class() -> Any:
    base: Any = import_module("IPython.core.interactiveshell").InteractiveShell

    class WindowlessShell(base):
        """What `%matplotlib inline` needs."""

        def enable_gui(self, gui: Any = None) -> None:
            pass

    return WindowlessShell


def _hook_class(current: Current) -> Any:
    base: Any = import_module("IPython.core.displayhook").DisplayHook

    class Hook(base):
        """Keeps the value of the last line."""

        def write_output_prompt(self) -> None:
            pass

        def write_format_data(self, format_dict: Any, md_dict: Any = None) -> None:
            say(format_dict.get("text/plain", ""))
            current.output.result(dict(format_dict), dict(md_dict or {}))

        def finish_displayhook(self) -> None:
            pass

    return Hook


def _publisher_class(current: Current) -> Any:
    base: Any = import_module("IPython.core.displaypub").DisplayPublisher

    class Publisher(base):
        """Keeps what is displayed."""

        def publish(self, data: Any, metadata: Any = None, **_more: Any) -> None:
            say(data.get("text/plain", ""))
            current.output.shown(dict(data), dict(metadata or {}))

    return Publisher


# --- the notebook ---


def read(path: Path) -> Json:
    """A notebook; ValueError says what is wrong with it."""
    try:
        notebook: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise ValueError(f"{path} is no notebook: it is no JSON") from None
    found = cast("Json", notebook) if isinstance(notebook, dict) else {}
    if not isinstance(found.get("cells"), list):
        raise ValueError(f"{path} is a notebook without cells: save it in Jupyter 4")
    language = found.get("metadata", {}).get("kernelspec", {}).get("language")
    if language not in (None, "python"):
        raise ValueError(f"{path} is written in {language}; only Python can be run")
    if not any(_source(cell).strip() for cell in _code(found)):
        raise ValueError(f"{path} has no cells with code")
    return found


def save(notebook: Json, path: Path) -> None:
    """Write it whole or not at all."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.write_text(json.dumps(notebook, indent=1) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        say(f"note: {path} cannot be written: {error.strerror}")


def run(notebook: Json, result: Path, execute: Execute, more: str) -> bool:
    """Run all cells, up to one that fails; whether none has. `more` is executed behind
    the cell of parameters.
    """
    cells = _code(notebook)
    for cell in cells:
        cell["outputs"] = []
        cell["execution_count"] = None
    number = 0
    for cell in cells:
        tags = cell.get("metadata", {}).get("tags", [])
        if not _source(cell).strip() or "skip-execution" in tags:
            continue
        number += 1
        is_fine = _run_cell(cell, number, execute)
        save(notebook, result)
        if not is_fine and "raises-exception" not in tags:
            say(f"error: cell {number} of {result} has failed")
            return False
        if "parameters" in tags:
            execute(more, CellOutput(number))
    return True


def _run_cell(cell: Json, number: int, execute: Execute) -> bool:
    output = CellOutput(number)
    cell["execution_count"] = number
    cell["outputs"] = output.items
    printed = Tee(sys.stdout, lambda text: output.stream("stdout", text))
    complained = Tee(sys.stderr, lambda text: output.stream("stderr", text))
    with (
        redirect_stdout(cast("TextIO", printed)),
        redirect_stderr(cast("TextIO", complained)),
    ):
        return execute(_source(cell), output)


def _code(notebook: Json) -> list[Json]:
    return [cell for cell in notebook["cells"] if cell.get("cell_type") == "code"]


def _source(cell: Json) -> str:
    source = cell.get("source", "")
    return source if isinstance(source, str) else "".join(source)


def assignments(arguments: Sequence[str]) -> str:
    """`--name value` and `--name=value` as statements of Python."""
    lines: list[str] = []
    waiting = ""
    for argument in arguments:
        if argument.startswith("--"):
            name, equals, value = argument[2:].partition("=")
            waiting = "" if equals else name
            lines.append(_assignment(name, value if equals else "True"))
        elif waiting:
            lines[-1] = _assignment(waiting, argument)
            waiting = ""
    return "\n".join(line for line in lines if line)


def _assignment(name: str, value: str) -> str:
    name = name.replace("-", "_")
    if not name.isidentifier():
        return ""
    try:
        return f"{name} = {ast.literal_eval(value)!r}"
    except (ValueError, SyntaxError):
        return f"{name} = {value!r}"


def main(words: Sequence[str]) -> int:
    """Run a notebook; the exit code."""
    path = Path(words[0])
    try:
        notebook = read(path)
    except ValueError as error:
        say(f"error: {error}")
        return BAD_INPUT
    module = ModuleType("__main__")
    sys.modules["__main__"] = module
    sys.argv = [str(path), *words[2:]]
    sys.path[0] = os.path.abspath(path.parent)  # noqa: PTH100
    try:
        execute = with_ipython(module)
    except ImportError:
        execute = plain(module)
    is_fine = run(notebook, Path(words[1]), execute, assignments(words[2:]))
    return 0 if is_fine else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
