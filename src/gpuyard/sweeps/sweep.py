"""A sweep as the instance knows it: its gate and its runs, all of them jobs."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpuyard.domain.jobs import Job
from gpuyard.domain.states import JobState
from gpuyard.sweeps.spec import SweepSpec

NAME_LABEL = "sweep"
ID_LABEL = "sweep-id"
PART_LABEL = "sweep-part"
"""`gate`, or `run`."""
NUMBER_LABEL = "sweep-run"
VALUE_LABEL = "param."
"""With the name of a parameter behind it."""
PRUNED = "-pruned"
"""The end of the name of a run that was given up for its curve."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a sweep. `value` is what its metric came to; None if it has none yet,
    or has failed.
    """

    number: int
    job: Job
    parameters: dict[str, str]
    value: float | None = None

    @property
    def is_over(self) -> bool:
        """True when its job is."""
        return self.job.state.terminal

    @property
    def is_pruned(self) -> bool:
        """True when it was given up for its curve."""
        return self.job.name.endswith(PRUNED)

    @property
    def outcome(self) -> str:
        """The state of its job, or `pruned`, or `no metric`."""
        if self.is_pruned and self.job.state is not JobState.COMPLETED:
            return "pruned"
        if self.job.state is JobState.COMPLETED and self.value is None:
            return "no metric"
        return self.job.state.value

    @property
    def has_failed(self) -> bool:
        """True when it is over without a value, and nobody gave it up."""
        return self.is_over and self.outcome not in ("completed", "pruned", "cancelled")

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "number": self.number,
            "job": self.job.id,
            "name": self.job.name,
            "state": self.outcome,
            "reason": self.job.reason,
            "exit_code": self.job.exit_code,
            "value": self.value,
            "parameters": self.parameters,
        }


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep. `gate` is the job that stands for all of it; `runs` are in the order of
    their numbers.
    """

    id: str
    spec: SweepSpec
    gate: Job
    gates: int
    runs: Sequence[Run] = ()

    @property
    def state(self) -> str:
        """`open` while more is to come, then `completed`, `failed` or `stopped`."""
        if not self.gate.state.terminal:
            return "open"
        if self.gate.state is JobState.COMPLETED:
            return "completed"
        failed = any(run.has_failed for run in self.runs)
        return "failed" if failed and self.best is None else "stopped"

    @property
    def best(self) -> Run | None:
        """The completed run with the best value; the first of equal ones."""
        values = {
            run.number: run.value
            for run in self.runs
            if run.outcome == "completed" and run.value is not None
        }
        if not values:
            return None
        pick = min if self.spec.goal == "minimize" else max
        number = pick(values, key=lambda number: values[number])
        return next(run for run in self.runs if run.number == number)

    @property
    def counts(self) -> dict[str, int]:
        """How many runs are in each state."""
        return dict(Counter(run.outcome for run in self.runs))

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        best = self.best
        return {
            "id": self.id,
            "name": self.spec.name,
            "state": self.state,
            "metric": self.spec.metric,
            "goal": self.spec.goal,
            "method": self.spec.method,
            "pruner": self.spec.pruner,
            "trials": self.spec.count(),
            "parallel": self.spec.parallel,
            "gate": self.gate.id,
            "counts": self.counts,
            "best": best.as_json() if best else None,
            "runs": [run.as_json() for run in self.runs],
        }


def parameters_of(job: Job) -> dict[str, str]:
    """The values of a run's parameters."""
    return {
        label.removeprefix(VALUE_LABEL): value
        for label, value in job.labels.items()
        if label.startswith(VALUE_LABEL)
    }
