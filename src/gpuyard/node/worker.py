"""A script's worker: `python -m gpuyard.node.worker --home HOME` does the work that stands on standard input.

Either one item, whose result it prints, or those of a batch: then it takes one after another from the server until
there are none, and the script stays loaded meanwhile. The script runs in a process of its own (`node/items.py`), so
that what it breaks is no more than its item, and in whatever environment has what it imports.
"""

import argparse
import json
import math
import os
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from gpuyard.config.paths import Home
from gpuyard.node.calling import CallRefusedError, call

_RUNNER = Path(__file__).with_name("items.py")
# So often a bar is worth a line.
_SHOWN_EVERY_S = 0.5
_LEAVE_S = 10.0
_FRESH_AFTER = 2
# A script that is stuck is asked to leave first. So often it is looked whether it has written something.
_STUCK_GRACE_S, _LOOK_S = 120.0, 1.0
# A call that waits for longer than this is made again: it is safe to repeat.
_ANSWER_S = 60.0


class ScriptError(Exception):
    """The script cannot do it. The text says why."""


class CrashError(ScriptError):
    """The script's process is gone."""


class Runner:
    """The script's process, loaded; it is started anew after it crashed."""

    def __init__(self, order: Mapping[str, Any]) -> None:
        self._script = str(order.get("file") or order["script"])
        self._python = str(order.get("python") or sys.executable)
        self._args: dict[str, Any] = order.get("args") or {}
        self._process: subprocess.Popen[str] | None = None
        self._faults = 0
        self._silent_s = float(order.get("silent_s") or 0) or math.inf
        self._stuck, self._heard = False, 0  # it was ended for being stuck; how often it has said something

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """No more items: the script leaves."""
        self.stop()

    def stop(self) -> None:
        """End the process; the next item is done by a fresh one."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin
        with suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(_LEAVE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(self._said)

    def load(self) -> None:
        """See to it that the script is loaded; ScriptError when it cannot be."""
        if self._process:
            return
        ours, theirs = os.pipe()
        try:
            self._process = subprocess.Popen([self._python, _RUNNER, self._script, str(theirs)], pass_fds=(theirs,),
                                             stdin=subprocess.PIPE, text=True)  # fmt: skip
        except OSError as error:
            os.close(ours)
            raise ScriptError(f"{self._python} cannot be run: {error.strerror}") from None
        finally:
            os.close(theirs)
        self._said = ours
        try:
            self._give({"args": self._args})
            self._hear()
        except CrashError:
            raise
        except ScriptError as error:
            self.stop()
            raise CrashError(str(error)) from None

    def run(self, args: Mapping[str, Any], folder: Path) -> Any:
        """Do an item and give its output; ScriptError."""
        self._give({"args": {**self._args, **args}, "folder": str(folder)})
        try:
            output, self._faults = self._hear(), 0
        except ScriptError:
            # One that goes wrong again and again may be the process's fault: CUDA's errors stay with it.
            self._faults += 1
            if self._faults >= _FRESH_AFTER:
                self.stop()
                self._faults = 0
            raise
        return output

    def _give(self, message: object) -> None:
        assert self._process
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._crashed()

    def _hear(self) -> Any:
        """What it says in the end; meanwhile its progress is shown."""
        shown_at = 0.0
        with self._watched():
            for line in self._lines():
                self._heard += 1
                try:
                    message = json.loads(line)
                except ValueError:
                    break  # it was killed while it wrote
                if "fault" in message:
                    raise ScriptError(message["fault"])
                if "progress" not in message:
                    return message.get("output")
                if math.isfinite(message["progress"]) and time.monotonic() - shown_at > _SHOWN_EVERY_S:
                    shown_at = time.monotonic()
                    _show(message["progress"])
        return self._crashed()

    def _lines(self) -> Iterator[bytes]:
        """What it says, line by line, until it is gone; its own children may hold the pipe for longer."""
        process, rest = self._process, b""
        assert process
        while True:
            if select.select([self._said], [], [], _LOOK_S)[0]:
                if not (heard := os.read(self._said, 1 << 16)):
                    return
                *lines, rest = (rest + heard).split(b"\n")
                yield from lines
            elif process.poll() is not None:
                return

    @contextmanager
    def _watched(self) -> Generator[None]:
        over = threading.Event()
        watching = threading.Thread(target=self._end_when_stuck, args=(over,), daemon=True)
        watching.start()
        try:
            yield
        finally:
            over.set()
            watching.join()

    def _end_when_stuck(self, over: threading.Event) -> None:
        """End the process when it has neither said nor written anything for too long."""
        process, seen, since = self._process, (_written(), self._heard), time.monotonic()
        assert process
        while not over.wait(_LOOK_S):
            if (now := (_written(), self._heard)) != seen:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since > self._silent_s:
                self._stuck = True
                process.terminate()
                if not over.wait(_STUCK_GRACE_S):
                    process.kill()
                return

    def _crashed(self) -> None:
        assert self._process
        self._process.kill()  # if it still is there
        code, self._process = self._process.wait(), None
        os.close(self._said)
        if self._stuck:
            self._stuck = False
            raise CrashError(f"it was stuck: it wrote nothing and showed no progress for {self._silent_s:g} s")
        raise CrashError(f"its process ended with signal {-code}" if code < 0 else f"its process left with code {code}")


def _written() -> int:
    """How much has been written to the log, which is standard output of both processes."""
    return os.fstat(1).st_size


def _show(part: float) -> None:
    print("GPUYARD_METRIC " + json.dumps({"step": round(part * 100), "total": 100}), flush=True)  # noqa: T201


@contextmanager
def _file_of(item: Mapping[str, Any]) -> Generator[dict[str, Any]]:
    """The item's arguments with the path of its file; an archive's entry is unpacked for as long."""
    args = {"path": item["path"], **item["args"]}
    if not item.get("entry"):
        yield args
        return
    try:
        from libzim.reader import Archive  # late: only archives need it

        with TemporaryDirectory(prefix="gpuyard-item-") as folder:
            path = Path(folder) / Path(item["entry"]).name
            path.write_bytes(Archive(Path(item["path"])).get_entry_by_path(item["entry"]).get_item().content)
            yield {**args, "path": str(path)}
    except ImportError:
        raise ScriptError("reading ZIM archives needs pip install 'gpuyard[zim]'") from None
    except (RuntimeError, KeyError) as error:
        raise ScriptError(f"{item['entry']} cannot be read from {item['path']}: {error}") from None


def name_of(item: Mapping[str, Any]) -> str:
    """What an item's result is called: its number and its own name, in plain letters."""
    stem = Path(item["entry"] or item["path"]).stem
    return f"{item['number']:05}-{re.sub(r'[^A-Za-z0-9._-]+', '-', stem)[:80] or 'item'}"


def _keep(path: Path, result: Mapping[str, Any]) -> None:
    """The whole file or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".new")
    draft.write_text(json.dumps(result) + "\n")
    draft.rename(path)


def do_item(runner: Runner, item: Mapping[str, Any], results: Path) -> dict[str, Any]:
    """Do an item of a batch, keep its result, and tell how it went."""
    began, name, fault, crashed = time.monotonic(), name_of(item), None, False
    _show(0.0)
    try:
        with _file_of(item) as args:
            runner.load()
            output = runner.run(args, results / name)
        duration = round(time.monotonic() - began, 3)
        _keep(results / f"{name}.json", {"task_id": item["id"], "output": output, "duration": duration})
    except ScriptError as error:
        fault, crashed = str(error), isinstance(error, CrashError)
    except OSError as error:
        fault = f"its result cannot be kept: {error}"
    print(f"{item['id']}: {fault or 'done'}", flush=True)  # noqa: T201
    return {"number": item["number"], "attempts": item["attempts"], "fault": fault, "crashed": crashed}


def work_off(home: Home, order: Mapping[str, Any], attempt_id: str) -> int:
    """Take items of the batch until there are none."""
    path, done = f"/api/v1/batches/{order['batch']}/take", None
    with Runner(order) as runner:
        try:
            runner.load()
        except ScriptError as error:
            call(home, path, {"attempt_id": attempt_id, "fault": str(error)}, _ANSWER_S, stubborn=True)
            return _fail(f"{order['script']} cannot be loaded: {error}")
        while item := call(home, path, {"attempt_id": attempt_id, "done": done}, _ANSWER_S, stubborn=True)["item"]:
            done = do_item(runner, item, Path(order["results"]))
    return 0


def work_once(order: Mapping[str, Any], task_id: str) -> int:
    """Do one item and print its result."""
    began = time.monotonic()
    with Runner(order) as runner:
        try:
            runner.load()
            output = runner.run({}, Path.cwd() / task_id)
        except ScriptError as error:
            return _fail(f"{order['script']}: {error}")
    duration = round(time.monotonic() - began, 3)
    print(json.dumps({"task_id": task_id, "output": output, "duration": duration}), flush=True)  # noqa: T201
    return 0


def _fail(reason: str) -> int:
    print(reason, file=sys.stderr, flush=True)  # noqa: T201
    return 1


def main() -> int:
    """Work."""
    parser = argparse.ArgumentParser(prog="python -m gpuyard.node.worker")
    parser.add_argument("--home", type=Path, required=True)
    words, order = parser.parse_args(), json.load(sys.stdin)
    if not order.get("batch"):
        return work_once(order, os.environ["GPUYARD_JOB_ID"])
    try:
        return work_off(Home(words.home), order, os.environ["GPUYARD_ATTEMPT_ID"])
    except CallRefusedError as refused:
        return _fail(f"the server takes no word of this worker any more: {refused}")


if __name__ == "__main__":
    sys.exit(main())
