"""What training tells: lines for people, curves for trackers, and metrics for a job's
owner.
"""

import json
import os

from options import Options
from report import Trackers, say


class Log:
    """Reports on a run, of which `done` steps are done, at the first step here and then
    at every `options.log_every` of them.
    """

    def __init__(self, options: Options, done: int) -> None:
        self._total = options.steps
        self._every = options.log_every
        self._steps = 0
        self._tokens = 0
        self._seconds = 0.0  # since the last line
        self._first = done + 1
        # Whoever runs this as a job reads its progress from these lines; alone they
        # would only be noise.
        self._metrics = bool(os.environ.get("GPUYARD_JOB_ID"))
        self._trackers = Trackers(options, self._first)

    def step(
        self, step: int, loss: float, lr: float, tokens: int, seconds: float
    ) -> None:
        """Note a step of `tokens` tokens and its loss in nats; every so often, a line
        on the steps since the last.
        """
        self._steps = self._steps + 1
        self._tokens = self._tokens + tokens
        self._seconds = self._seconds + seconds
        if step % self._every and step not in (self._first, self._total):
            return
        tokens_per_s = self._tokens / self._seconds
        say(
            f"iter {step}: loss {loss:.4f}, time"
            f" {self._seconds / self._steps * 1000:.2f}ms, lr {lr:.1e}"
        )
        if self._metrics:
            metrics = {
                "step": step,
                "total": self._total,
                "loss": loss,
                "lr": lr,
                "tokens_per_s": round(tokens_per_s),
            }
            say(f"GPUYARD_METRIC {json.dumps(metrics)}")
        curves = {"loss/batch": loss, "lr": lr, "tokens_per_s": tokens_per_s}
        self._trackers.log(step, curves)
        self._steps = 0
        self._tokens = 0
        self._seconds = 0.0

    def evaluation(self, step: int, train_loss: float, val_loss: float) -> None:
        """One line on an evaluation: mean losses in nats on text that is trained on and
        on text that is not.
        """
        say(f"step {step}: train loss {train_loss:.4f}, val loss {val_loss:.4f}")
        self._trackers.log(step, {"loss/train": train_loss, "loss/val": val_loss})

    def close(self) -> None:
        """Let the trackers write what they still have."""
        self._trackers.close()
