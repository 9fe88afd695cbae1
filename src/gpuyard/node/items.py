"""Runs a script's items, one after another, in the environment that has what the script imports.

`python items.py SCRIPT FD` is given an item a line on standard input and says a line each on the descriptor FD; what
the script prints is its own. It runs in other people's environments, so it imports nothing of gpuyard's:

    {"args": {…}}                                          first, once: the script is loaded, and answers
    {"ready": true} or {"fault": "…"}
    {"args": {…}, "folder": "…"}                           then an item
    {"progress": 0.5} … {"output": …} or {"fault": "…"}

A script is a Python file with `load(args) -> run`, and `run(args, folder, progress)` does an item: `args` are its
arguments, `folder` is where its files go, `progress(0.5)` says how far it is, and what it returns (anything that JSON
can say) is its output.
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

Run = Callable[[dict[str, Any], Path, Callable[[float], None]], Any]
Load = Callable[[dict[str, Any]], Run]


def find(script: str) -> Load:
    """What loads the script: a file's `load`, what an installed package registered, or one of gpuyard's own."""
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
    """What went wrong in one line; the whole of it goes to the log."""
    traceback.print_exc()
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0]}" if said else type(error).__name__


def main() -> int:
    """Load, then do items until there are no more."""
    script, said = sys.argv[1], os.fdopen(int(sys.argv[2]), "w")
    lines = iter(sys.stdin.readline, "")

    def say(**message: Any) -> None:
        said.write(json.dumps(message, allow_nan="progress" in message) + "\n")
        said.flush()

    try:
        run = find(script)(json.loads(next(lines))["args"])
    except Exception as error:  # noqa: BLE001  whatever it is, it is the script's
        say(fault=_fault(error))
        return 1
    say(ready=True)
    for line in lines:
        item = json.loads(line)
        try:
            output = run(item["args"], Path(item["folder"]), lambda part: say(progress=float(part)))
            say(output=output)
        except Exception as error:  # noqa: BLE001  likewise; the next item may be better
            say(fault=_fault(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
