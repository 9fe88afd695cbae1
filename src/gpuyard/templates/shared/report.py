"""What training tells: a line for people, and curves for TensorBoard, Weights & Biases
and MLflow, where they are installed and asked for.

TensorBoard's files are in `OUT/tensorboard`. W&B is asked for by WANDB_PROJECT, and
MLflow by MLFLOW_TRACKING_URI. A tracker that fails is told once and left alone:
training goes on.
"""

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

Log = Callable[[int, Mapping[str, float]], None]


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
        self._writes = writes
        self._trackers: dict[str, Log] = {}
        self._ends: list[Callable[[], object]] = []
        if not writes:
            return
        for name, start in (
            ("TensorBoard", self._start_tensorboard),
            ("W&B", self._start_wandb),
            ("MLflow", self._start_mlflow),
        ):
            try:
                log = start(options, first)
            except ImportError:
                continue
            except Exception as error:  # noqa: BLE001  (libraries raise anything)
                say(f"note: no {name}: {error}")
                continue
            if log is not None:
                self._trackers[name] = log

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Tell of a step."""
        if not self._writes:
            return
        numbers = " ".join(f"{name}={value:.6g}" for name, value in metrics.items())
        say(f"step {step}/{self._total} {numbers}")
        for name, log in list(self._trackers.items()):
            try:
                log(step, metrics)
            except Exception as error:  # noqa: BLE001  (training must go on)
                say(f"note: no more {name}: {error}")
                del self._trackers[name]

    def close(self) -> None:
        """Let the trackers write what they still have."""
        for end in self._ends:
            with suppress(Exception):
                end()

    def _start_tensorboard(self, options: argparse.Namespace, first: int) -> Log:
        from torch.utils.tensorboard import SummaryWriter

        # Steps that were logged after the checkpoint and are now done again are taken
        # out of the curves.
        board = SummaryWriter(options.out / "tensorboard", purge_step=first)
        self._ends.append(board.close)

        def log(step: int, metrics: Mapping[str, float]) -> None:
            for name, value in metrics.items():
                board.add_scalar(name, value, step)

        return log

    def _start_wandb(self, options: argparse.Namespace, first: int) -> Log | None:
        if not os.environ.get("WANDB_PROJECT"):
            return None
        import wandb

        run: Any = wandb.init(config=_plain(options), dir=str(options.out))
        self._ends.append(run.finish)
        return lambda step, metrics: run.log(dict(metrics), step=step)

    def _start_mlflow(self, options: argparse.Namespace, first: int) -> Log | None:
        if not os.environ.get("MLFLOW_TRACKING_URI"):
            return None
        import mlflow

        mlflow.start_run()
        mlflow.log_params(_plain(options))
        self._ends.append(mlflow.end_run)
        return lambda step, metrics: mlflow.log_metrics(dict(metrics), step=step)


def _plain(options: argparse.Namespace) -> dict[str, Any]:
    return {
        name: value if isinstance(value, int | float) else str(value)
        for name, value in vars(options).items()
    }
