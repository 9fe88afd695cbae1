"""Runs a script's items: `python -m gpuyard.node.worker --home HOME` reads its order
from standard input. Under an account that may not enter the home, it is `--socket PATH`
in place of that; on a machine that has joined, `--agent PATH`.

The order is either one item, whose result is printed, or a batch: then the worker takes
one item after another from the server until there are none, while the script stays
loaded. For that, the order has a token which is worth these calls alone. The script
runs in a process of its own (`node/items.py`): a crash costs only its item, and the
script can have an environment of its own.
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
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self, cast

from gpuyard.config.paths import Home
from gpuyard.node.calling import (
    CallRefusedError,
    Servers,
    call,
    call_agent,
    server_at,
    servers_of,
)

_ITEMS_PROGRAM = Path(__file__).with_name("items.py")
# Progress is printed at most this often.
_PROGRESS_EVERY_S = 0.5
_EXIT_S = 10.0
# After this many failed items in a row the process is replaced.
_MAX_FAILURES = 2
# How long a stuck script has between TERM and KILL.
_STUCK_GRACE_S = 120.0
# How often it is checked whether the script has written anything.
_LOOK_S = 1.0
# A call is repeated after this time; that is safe.
_CALL_TIMEOUT_S = 60.0
# What an agent passes on of how a script failed.
_LONGEST_FAULT = 10_000


# Asks the server for an item, with the outcome of the last one (`done`), or why none
# can be done (`fault`).
Take = Callable[..., Any]


class ScriptError(Exception):
    """The script failed. The text is the reason."""


class CrashError(ScriptError):
    """The script's process has ended."""


class ScriptProcess:
    """The process in which the script is loaded; it is started again after a crash."""

    def __init__(self, order: Mapping[str, Any]) -> None:
        self._script = str(order.get("file") or order["script"])
        self._python = str(order.get("python") or sys.executable)
        self._args: dict[str, Any] = order.get("args") or {}
        self._process: subprocess.Popen[str] | None = None
        self._failures = 0
        self._silent_s = float(order.get("silent_s") or 0) or math.inf
        self._stuck = False  # true once it was ended because it was stuck
        self._messages = 0  # received from the process

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the process; the next item starts a new one."""
        process = self._process
        self._process = None
        if process is None:
            return
        assert process.stdin
        with suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(_EXIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(self._answers)

    def load(self) -> None:
        """Start the process and load the script, if that is not done; ScriptError when
        it cannot be.
        """
        if self._process:
            return
        ours, theirs = os.pipe()
        try:
            self._process = subprocess.Popen(
                [self._python, _ITEMS_PROGRAM, self._script, str(theirs)],
                pass_fds=(theirs,),
                stdin=subprocess.PIPE,
                text=True,
            )
        except OSError as error:
            os.close(ours)
            raise ScriptError(
                f"{self._python} cannot be run: {error.strerror}"
            ) from None
        finally:
            os.close(theirs)
        self._answers = ours
        try:
            self._send({"args": self._args})
            self._receive()
        except CrashError:
            raise
        except ScriptError as error:
            self.stop()
            raise CrashError(str(error)) from None

    def run(self, args: Mapping[str, Any], folder: Path) -> Any:
        """Process an item and return its output; raises ScriptError."""
        self._send({"args": {**self._args, **args}, "folder": str(folder)})
        try:
            output = self._receive()
            self._failures = 0
        except ScriptError:
            # Repeated failures may be the fault of the process: CUDA errors stay with
            # it.
            self._failures += 1
            if self._failures >= _MAX_FAILURES:
                self.stop()
                self._failures = 0
            raise
        return output

    def _send(self, message: object) -> None:
        assert self._process
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._crashed()

    def _receive(self) -> Any:
        """The result of the item or of the load; progress before it is printed."""
        printed_at = 0.0
        with self._watched():
            for line in self._lines():
                self._messages += 1
                try:
                    found = json.loads(line)
                except (ValueError, RecursionError):
                    break  # it was killed while it wrote
                if not isinstance(found, dict):
                    break  # the script itself has written there
                message = cast("dict[str, Any]", found)
                if "fault" in message:
                    raise ScriptError(str(message["fault"]))
                if "progress" not in message:
                    return message.get("output")
                progress = message["progress"]
                due = time.monotonic() - printed_at > _PROGRESS_EVERY_S
                if due and isinstance(progress, float) and math.isfinite(progress):
                    printed_at = time.monotonic()
                    _print_progress(progress)
        return self._crashed()

    def _lines(self) -> Iterator[bytes]:
        """The process's messages until it has ended; its own children may hold the pipe
        open for longer.
        """
        process = self._process
        rest = b""
        assert process
        while True:
            readable, _, _ = select.select([self._answers], [], [], _LOOK_S)
            if readable:
                data = os.read(self._answers, 1 << 16)
                if not data:
                    return
                *lines, rest = (rest + data).split(b"\n")
                yield from lines
            elif process.poll() is not None:
                return

    @contextmanager
    def _watched(self) -> Generator[None]:
        over = threading.Event()
        watching = threading.Thread(
            target=self._end_when_stuck, args=(over,), daemon=True
        )
        watching.start()
        try:
            yield
        finally:
            over.set()
            watching.join()

    def _end_when_stuck(self, over: threading.Event) -> None:
        """End the process when it has neither answered nor written anything for too
        long.
        """
        process = self._process
        assert process
        last = (_log_bytes(), self._messages)
        since = time.monotonic()
        while not over.wait(_LOOK_S):
            current = (_log_bytes(), self._messages)
            if current != last:
                last = current
                since = time.monotonic()
            elif time.monotonic() - since > self._silent_s:
                self._stuck = True
                process.terminate()
                if not over.wait(_STUCK_GRACE_S):
                    process.kill()
                return

    def _crashed(self) -> None:
        assert self._process
        self._process.kill()  # if it still runs
        code = self._process.wait()
        self._process = None
        os.close(self._answers)
        if self._stuck:
            self._stuck = False
            raise CrashError(
                "it was stuck: it wrote nothing and showed no progress for"
                f" {self._silent_s:g} s"
            )
        raise CrashError(
            f"its process ended with signal {-code}"
            if code < 0
            else f"its process left with code {code}"
        )


def _log_bytes() -> int:
    """The size of the log, which is standard output of both processes."""
    return os.fstat(1).st_size


def _print_progress(part: float) -> None:
    metric = json.dumps({"step": round(part * 100), "total": 100})
    print(f"GPUYARD_METRIC {metric}", flush=True)


@contextmanager
def _file_of(item: Mapping[str, Any]) -> Generator[dict[str, Any]]:
    """The item's arguments with the path of its file; an archive's entry is unpacked
    for the time of the context.
    """
    args = {"path": item["path"], **item["args"]}
    if not item.get("entry"):
        yield args
        return
    try:
        from libzim.reader import Archive  # late: only archives need it

        with TemporaryDirectory(prefix="gpuyard-item-") as folder:
            path = Path(folder) / Path(item["entry"]).name
            entry = Archive(Path(item["path"])).get_entry_by_path(item["entry"])
            path.write_bytes(entry.get_item().content)
            yield {**args, "path": str(path)}
    except ImportError:
        raise ScriptError(
            "reading ZIM archives needs pip install 'gpuyard[zim]'"
        ) from None
    except (RuntimeError, KeyError) as error:
        raise ScriptError(
            f"{item['entry']} cannot be read from {item['path']}: {error}"
        ) from None


def name_of(item: Mapping[str, Any]) -> str:
    """The file name of an item's result: its number and its own name in plain
    letters.
    """
    stem = Path(item["entry"] or item["path"]).stem
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", stem)[:80]
    return f"{item['number']:05}-{plain or 'item'}"


def _write_result(path: Path, result: Mapping[str, Any]) -> None:
    """Write the file; it appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".new")
    draft.write_text(json.dumps(result) + "\n")
    draft.rename(path)


def do_item(
    runner: ScriptProcess, item: Mapping[str, Any], results: Path
) -> dict[str, Any]:
    """Process an item of a batch, write its result, and return how it went."""
    began = time.monotonic()
    name = name_of(item)
    fault = None
    crashed = False
    _print_progress(0.0)
    try:
        with _file_of(item) as args:
            runner.load()
            output = runner.run(args, results / name)
        duration = round(time.monotonic() - began, 3)
        result = {"task_id": item["id"], "output": output, "duration": duration}
        _write_result(results / f"{name}.json", result)
    except ScriptError as error:
        fault = str(error)
        crashed = isinstance(error, CrashError)
    except OSError as error:
        fault = f"its result cannot be kept: {error}"
    print(f"{item['id']}: {fault or 'done'}", flush=True)
    return {
        "number": item["number"],
        "attempts": item["attempts"],
        "fault": fault,
        "crashed": crashed,
    }


def take_from(servers: Servers, order: Mapping[str, Any], attempt_id: str) -> Take:
    """Asks one of these servers."""
    path = f"/api/v1/batches/{order['batch']}/take"

    def take(**facts: Any) -> Any:
        body = {"attempt_id": attempt_id, **facts}
        # An order of an older server has no token; the server says so.
        token = order.get("token", "")
        return call(servers, token, path, body, _CALL_TIMEOUT_S)

    return take


def take_through(agent: Path, order: Mapping[str, Any], attempt_id: str) -> Take:
    """Asks through the agent of a machine that has joined."""
    who = {
        "batch_id": order["batch"],
        "attempt_id": attempt_id,
        "token": order.get("token", ""),
    }

    def take(done: dict[str, Any] | None = None, fault: str | None = None) -> Any:
        if done and done["fault"]:
            done = {**done, "fault": done["fault"][:_LONGEST_FAULT]}
        if fault:
            fault = fault[:_LONGEST_FAULT]
        request = {**who, "done": done, "fault": fault}
        return call_agent(agent, request, _CALL_TIMEOUT_S)

    return take


def run_batch(take: Take, order: Mapping[str, Any]) -> int:
    """Take items of the batch until there are none."""
    with ScriptProcess(order) as runner:
        try:
            runner.load()
        except ScriptError as error:
            take(fault=str(error))
            return _fail(f"{order['script']} cannot be loaded: {error}")
        item = take(done=None)["item"]
        while item:
            done = do_item(runner, item, Path(order["results"]))
            item = take(done=done)["item"]
    return 0


def run_once(order: Mapping[str, Any], job_id: str) -> int:
    """Process one item and print its result, last of all."""
    began = time.monotonic()
    with ScriptProcess(order) as runner:
        try:
            runner.load()
            # Shows that it is loaded.
            _print_progress(0.0)
            output = runner.run({}, Path.cwd() / job_id)
        except ScriptError as error:
            return _fail(f"{order['script']}: {error}")
    duration = round(time.monotonic() - began, 3)
    # An order of an older server names no task.
    task_id = order.get("task_id") or job_id
    result = {"task_id": task_id, "output": output, "duration": duration}
    print(json.dumps(result), flush=True)
    return 0


def _fail(reason: str) -> int:
    print(reason, file=sys.stderr, flush=True)
    return 1


def _servers(home: Path | None, socket: Path | None) -> Servers:
    """How to find the servers: those of the `home`, or the one at the `socket`."""
    if home:
        return partial(servers_of, Home(home))
    assert socket
    return lambda: [server_at(socket)]


def _read_order() -> Any:
    """The order on standard input, which is then closed: it has a token, and the script
    could open what this process has open.
    """
    order = json.load(sys.stdin)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, sys.stdin.fileno())
    os.close(nothing)
    return order


def main() -> int:
    """Run the order on standard input."""
    parser = argparse.ArgumentParser(prog="python -m gpuyard.node.worker")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--home", type=Path)
    where.add_argument("--socket", type=Path)
    where.add_argument("--agent", type=Path)
    options = parser.parse_args()
    order = _read_order()
    if not order.get("batch"):
        return run_once(order, os.environ["GPUYARD_JOB_ID"])
    attempt_id = os.environ["GPUYARD_ATTEMPT_ID"]
    try:
        if options.agent:
            take = take_through(options.agent, order, attempt_id)
        else:
            servers = _servers(options.home, options.socket)
            take = take_from(servers, order, attempt_id)
        return run_batch(take, order)
    except CallRefusedError as refused:
        return _fail(f"the server refuses this worker from now on: {refused}")


if __name__ == "__main__":
    sys.exit(main())
