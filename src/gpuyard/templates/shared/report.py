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
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any

PATIENCE_S = 10.0
"""How long trackers may take at the end for what they still have."""
Log = Callable[[int, Mapping[str, float]], object]
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
    """Curves for TensorBoard, W&B and MLflow, from the `first` step here on."""

    def __init__(self, options: argparse.Namespace, first: int) -> None:
        self._board = _board(options, first)
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
        self._waiting: SimpleQueue[tuple[int, dict[str, float]] | None] = SimpleQueue()
        self._thread = Thread(target=self._serve, daemon=True)
        self._thread.start()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log it as soon as the server has what came before."""
        self._waiting.put((step, dict(metrics)))

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
            while (item := self._waiting.get()) is not None:
                log(*item)
        except Exception as error:  # noqa: BLE001  (training must go on)
            say(f"note: no more {self._name}: {error}")
        with suppress(Exception):
            end()


def _board(options: argparse.Namespace, first: int) -> Any:
    """What writes TensorBoard's files; None if it cannot."""
    try:
        from torch.utils.tensorboard import SummaryWriter

        # Steps that were logged after the checkpoint and are now done again are taken
        # out of the curves.
        return SummaryWriter(options.out / "tensorboard", purge_step=first)
    except ImportError:
        return None
    except Exception as error:  # noqa: BLE001  (libraries raise anything)
        say(f"note: no TensorBoard: {error}")
        return None


def _start_wandb(options: argparse.Namespace) -> tuple[Log, End]:
    import wandb

    run: Any = wandb.init(config=_plain(options), dir=str(options.out))
    return lambda step, metrics: run.log(metrics, step=step), run.finish


def _start_mlflow(options: argparse.Namespace) -> tuple[Log, End]:
    import mlflow

    mlflow.start_run()
    mlflow.log_params(_plain(options))
    return lambda step, metrics: mlflow.log_metrics(metrics, step=step), mlflow.end_run


def _plain(options: argparse.Namespace) -> dict[str, Any]:
    return {
        name: value if isinstance(value, int | float) else str(value)
        for name, value in vars(options).items()
    }
