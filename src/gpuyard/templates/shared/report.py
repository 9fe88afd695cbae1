"""What training tells: a line for people, and curves for TensorBoard, Weights & Biases
and MLflow, where they are installed and asked for.

TensorBoard's files are in `OUT/tensorboard`. W&B is asked for by WANDB_PROJECT, and
MLflow by MLFLOW_TRACKING_URI. A tracker that fails is told once and left alone, and one
that hangs is waited for only at the end: training goes on.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any

PATIENCE_S = 10.0
"""How long trackers may take at the end for what they still have."""
MOST_AT_ONCE = 200
"""Steps that are sent together, so that fast training does not outrun a server."""


@dataclass(frozen=True)
class Point:
    """The metrics of a step, and when it was over (UTC seconds)."""

    step: int
    metrics: dict[str, float]
    at: float


Log = Callable[[list[Point]], object]
End = Callable[[], object]


def say(line: str) -> None:
    """Print at once, so that whoever follows the output sees where training is."""
    print(line, flush=True)


def missing_library(error: ImportError) -> str:
    """What to tell about a library that this Python has not."""
    return (
        f"error: {sys.executable} has no {error.name}, which this program needs."
        " Install what it needs with `pip install -r requirements.txt`, and submit from"
        " that environment."
    )


class Report:
    """Reports on a run from its `first` step here on; silent if it does not `write`."""

    def __init__(
        self, options: argparse.Namespace, *, first: int, writes: bool = True
    ) -> None:
        self._total = options.steps
        self._trackers = Trackers(options, first) if writes else None

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Tell of a step."""
        if self._trackers is None:
            return
        numbers = " ".join(f"{name}={value:.6g}" for name, value in metrics.items())
        say(f"step {step}/{self._total} {numbers}")
        self._trackers.log(step, metrics)

    def close(self) -> None:
        """Let the trackers write what they still have."""
        if self._trackers is not None:
            self._trackers.close()


class Trackers:
    """Curves for TensorBoard, W&B and MLflow, from the `first` step here on. Without a
    `board`, none for TensorBoard.
    """

    def __init__(
        self, options: argparse.Namespace, first: int, *, board: bool = True
    ) -> None:
        self._board = _board(options, first) if board else None
        self._services: list[Service] = []
        if os.environ.get("WANDB_PROJECT"):
            self._services.append(Service("W&B", partial(_start_wandb, options)))
        if os.environ.get("MLFLOW_TRACKING_URI"):
            self._services.append(Service("MLflow", partial(_start_mlflow, options)))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Give the metrics of a step to all of them; never waits for a server."""
        for service in self._services:
            service.log(step, metrics)
        if self._board is None:
            return
        try:
            for name, value in metrics.items():
                self._board.add_scalar(name, value, step)
        except Exception as error:  # noqa: BLE001  (training must go on)
            say(f"note: no more TensorBoard: {error}")
            self._board = None

    def close(self) -> None:
        """Let them write what they still have, for PATIENCE_S at most."""
        if self._board is not None:
            with suppress(Exception):
                self._board.close()
        until = time.monotonic() + PATIENCE_S
        for service in self._services:
            service.close(until)


class Service:
    """A tracker with a server. It has a thread of its own, because the server may hang.

    `start` begins a run; it returns how to log, and how to end the run.
    """

    def __init__(self, name: str, start: Callable[[], tuple[Log, End]]) -> None:
        self._name = name
        self._start = start
        self._waiting: SimpleQueue[Point | None] = SimpleQueue()
        self._thread = Thread(target=self._serve, daemon=True)
        self._thread.start()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log it as soon as the server has what came before."""
        self._waiting.put(Point(step, dict(metrics), time.time()))

    def close(self, until: float) -> None:
        """End the run; waits for that `until` (monotonic seconds)."""
        self._waiting.put(None)
        self._thread.join(max(until - time.monotonic(), 0.0))
        if self._thread.is_alive():
            say(f"note: {self._name} does not answer: what it has not got is lost")

    def _serve(self) -> None:
        try:
            log, end = self._start()
        except ImportError:
            return
        except Exception as error:  # noqa: BLE001  (libraries raise anything)
            say(f"note: no {self._name}: {error}")
            return
        try:
            while points := self._next():
                log(points)
        except Exception as error:  # noqa: BLE001  (training must go on)
            say(f"note: no more {self._name}: {error}")
        with suppress(Exception):
            end()

    def _next(self) -> list[Point]:
        """The points that wait, some of them at once; none at the end."""
        found: list[Point] = []
        while len(found) < MOST_AT_ONCE and (not found or not self._waiting.empty()):
            point = self._waiting.get()
            if point is None:
                if found:
                    self._waiting.put(None)  # it ends the next time
                break
            found.append(point)
        return found


def _board(options: argparse.Namespace, first: int) -> Any:
    """What writes TensorBoard's files; None if it cannot."""
    try:
        writer = _summary_writer()
        # Steps that were logged after the checkpoint and are now done again are taken
        # out of the curves.
        return writer(str(options.out / "tensorboard"), purge_step=first)
    except ImportError:
        return None
    except Exception as error:  # noqa: BLE001  (libraries raise anything)
        say(f"note: no TensorBoard: {error}")
        return None


def _summary_writer() -> Any:
    """The class that writes TensorBoard's files; ImportError if there is none."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        from tensorboardX import SummaryWriter
    return SummaryWriter


def _start_wandb(options: argparse.Namespace) -> tuple[Log, End]:
    import wandb

    run: Any = wandb.init(config=_plain(options), dir=str(options.out))

    def log(points: list[Point]) -> None:
        for point in points:
            run.log(point.metrics, step=point.step)

    return log, run.finish


def _start_mlflow(options: argparse.Namespace) -> tuple[Log, End]:
    import mlflow

    run_id = mlflow.start_run().info.run_id
    mlflow.log_params(_plain(options))
    client = mlflow.MlflowClient()

    def log(points: list[Point]) -> None:
        metrics = [
            mlflow.entities.Metric(name, value, int(point.at * 1000), point.step)
            for point in points
            for name, value in point.metrics.items()
        ]
        client.log_batch(run_id, metrics=metrics)

    return log, mlflow.end_run


def _plain(options: argparse.Namespace) -> dict[str, Any]:
    return {
        name: value if isinstance(value, int | float) else str(value)
        for name, value in vars(options).items()
    }
