"""What the program beside this file needs besides its model: its command line, the loop
over steps, checkpoints, and signals.

SIGUSR1 asks for a checkpoint after the step at hand; SIGTERM and Ctrl-C ask for one and
then for the end.
"""

import argparse
import math
import os
import random
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from report import Report, say
from signals import Requests

State = dict[str, Any]
KEPT = 3
"""How many checkpoints stay."""


class Task(Protocol):
    """A model, its optimiser and its data."""

    def step(self) -> dict[str, float]:
        """Train one step; its `loss` and other numbers."""
        ...

    def evaluate(self) -> dict[str, float]:
        """Numbers on data that it does not learn from."""
        ...

    def state(self) -> State:
        """All that a step changes, as plain values and tensors."""
        ...

    def restore(self, state: State) -> None:
        """Go back to such a state."""
        ...


def parse(
    about: str, sizes: Mapping[str, Mapping[str, Any]], **more: Any
) -> argparse.Namespace:
    """The options of the command line; what it leaves open is as the size says. `more`:
    further options with their defaults.
    """
    parser = argparse.ArgumentParser(description=about)
    first = next(iter(sizes))
    parser.add_argument("--size", choices=list(sizes), default=first)
    for name in sizes[first]:
        kind = type(sizes[first][name])
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind)
    for name, default in more.items():
        kind = str if default is None else type(default)
        parser.add_argument(f"--{name}", type=kind, default=default)
    parser.add_argument("--save-every", type=int, default=50, help="steps")
    parser.add_argument("--eval-every", type=int, default=50, help="steps")
    parser.add_argument("--log-every", type=int, default=10, help="steps")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument(
        "--resume",
        type=Path,
        default=os.environ.get("GPUYARD_RESUME_FROM") or None,
        help="a checkpoint; by default the one that gpuyard names",
    )
    options = parser.parse_args()
    for name, value in sizes[options.size].items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    torch.manual_seed(options.seed)
    random.seed(options.seed)
    return options


def pick_device() -> torch.device:
    """A GPU where PyTorch finds one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def train(task: Task, options: argparse.Namespace, *, writes: bool = True) -> int:
    """Train to the last step, or until a signal ends it; the exit code.

    Of several processes only one `writes` checkpoints and metrics.
    """
    requests = Requests()
    options.out.mkdir(parents=True, exist_ok=True)
    done = _resume(task, options.resume)
    report = Report(options, first=done + 1, writes=writes)
    try:
        return _loop(task, options, done, report, requests, writes)
    finally:
        report.close()


def _loop(
    task: Task,
    options: argparse.Namespace,
    done: int,
    report: Report,
    requests: Requests,
    writes: bool,
) -> int:
    for step in range(done + 1, options.steps + 1):
        metrics = task.step()
        is_last = step == options.steps
        if not math.isfinite(metrics["loss"]):
            print(f"error: the loss is {metrics['loss']} at step {step}: lower --lr")
            return 1
        if is_last or step % options.eval_every == 0:
            metrics |= task.evaluate()
        if is_last or step % options.log_every == 0 or step % options.eval_every == 0:
            report.step(step, metrics)
        # Read once: a signal that comes from here on is for the next step.
        stop = requests.stop
        if is_last or stop or requests.save or step % options.save_every == 0:
            requests.save = False
            if writes:
                _save(task, step, options.out)
        if stop and not is_last:
            say(f"stopped by {signal.Signals(stop).name} after step {step}")
            return 128 + stop
    return 0


def _save(task: Task, step: int, folder: Path) -> None:
    """Write a checkpoint, whole or not at all, and delete all but the newest."""
    path = folder / f"ckpt-{step:06d}.pt"
    temporary = folder / f".{path.name}.tmp"
    state = {"step": step, "task": task.state(), "torch": torch.get_rng_state()}
    with temporary.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    for old in sorted(folder.glob("ckpt-*.pt"))[:-KEPT]:
        old.unlink(missing_ok=True)
    say(f"saved {path}")


def _resume(task: Task, path: Path | str | None) -> int:
    """Go on from a checkpoint; the steps that it has behind it, 0 without one."""
    if not path:
        return 0
    try:
        # Plain values and tensors only: a checkpoint from elsewhere must not be able to
        # run code.
        state = torch.load(path, map_location="cpu", weights_only=True)
        task.restore(state["task"])
    except (OSError, KeyError, RuntimeError, ValueError) as error:
        sys.exit(f"error: cannot go on from {path}: {error}")
    torch.set_rng_state(state["torch"])
    say(f"resumed from {path} after step {state['step']}")
    return int(state["step"])
