"""Runs a script over items, one after another, in an environment that has what the
script imports.

`python items.py SCRIPT FD` reads one message per line from standard input, and writes
its answers, one per line, to the descriptor FD. Standard output belongs to the script.
This program runs in other people's environments, so it imports nothing from gpuyard:

    {"args": {…}}                  first: load the script
    {"ready": true} or {"fault": "…"}
    {"args": {…}, "folder": "…"}   then for each item
    {"progress": 0.5} … {"output": …} or {"fault": "…"}

A script is a Python file with a function `load(args)` that returns `run`, and
`run(args, folder, progress)` processes an item: `args` are its arguments, `folder` is
where its files go, and `progress(0.5)` reports progress. What `run` returns (anything
that JSON can express) is the item's output.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

# Servers refuse longer bodies than some such texts are.
_LONGEST_FAULT = 10_000
Run = Callable[[dict[str, Any], Path, Callable[[float], None]], Any]
Load = Callable[[dict[str, Any]], Run]


def find(script: str) -> Load:
    """The script's `load`: from a file, from an installed package's entry point, or
    from gpuyard's own scripts.
    """
    if script.endswith(".py"):
        return _from_file(Path(script))
    for entry in entry_points(group="gpuyard.scripts", name=script):
        return entry.load()
    return _from_file(Path(__file__).parent / "workers" / f"{script}.py")


def _from_file(path: Path) -> Load:
    spec = spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(f"{path} is no Python file")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    load = getattr(module, "load", None)
    if load is None:
        raise AttributeError(f"{path} has no function load(args)")
    return load


def _fault(error: BaseException) -> str:
    """The error in one line; its traceback goes to the log."""
    traceback.print_exc()
    name = type(error).__name__
    lines = str(error).strip().splitlines()
    text = f"{name}: {lines[0]}" if lines else name
    # The names of files in it may be no text.
    return text[:_LONGEST_FAULT].encode(errors="replace").decode()


def main() -> int:
    """Load the script, then process items until there are no more."""
    script = sys.argv[1]
    answers = os.fdopen(int(sys.argv[2]), "w")
    lines = iter(sys.stdin.readline, "")

    def answer(**message: Any) -> None:
        answers.write(json.dumps(message, allow_nan="progress" in message) + "\n")
        answers.flush()

    def show_progress(part: float) -> None:
        answer(progress=float(part))

    try:
        run = find(script)(json.loads(next(lines))["args"])
    except Exception as error:  # noqa: BLE001  a script may raise anything
        answer(fault=_fault(error))
        return 1
    answer(ready=True)
    for line in lines:
        item = json.loads(line)
        try:
            output = run(item["args"], Path(item["folder"]), show_progress)
            answer(output=output)
        except Exception as error:  # noqa: BLE001  the next item may work
            answer(fault=_fault(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
