"""Chooses the values of the next run."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from gpuyard.sweeps import space
from gpuyard.sweeps.spec import SweepSpec
from gpuyard.sweeps.sweep import Run

Curve = Sequence[tuple[int, float]]
"""Steps and values."""


class Chooser(Protocol):
    """What a sweep asks. Runs are known by their numbers."""

    def choose(self, number: int) -> dict[str, str]:
        """The values of a new run."""
        ...

    def begin(self, number: int, parameters: Mapping[str, str]) -> None:
        """There is this run: the one just chosen, or one of an earlier time."""
        ...

    def should_prune(self, number: int, curve: Curve) -> bool:
        """Whether a run with this curve is not worth going on with."""
        ...

    def end(self, run: Run, curve: Curve) -> None:
        """A run is over."""
        ...


class PlainChooser:
    """A grid, or random values: what other runs came to does not matter."""

    def __init__(self, spec: SweepSpec) -> None:
        self._spec = spec
        self._space = spec.space()

    def choose(self, number: int) -> dict[str, str]:
        """A cell of the grid, or random values."""
        if self._spec.method == "grid":
            return space.cell(self._space, number)
        return space.drawn(self._space, self._spec.seed, number)

    def begin(self, number: int, parameters: Mapping[str, str]) -> None:
        """Nothing to note."""

    def should_prune(self, number: int, curve: Curve) -> bool:
        """Never."""
        return False

    def end(self, run: Run, curve: Curve) -> None:
        """Nothing to note."""


def chooser_of(spec: SweepSpec) -> Chooser:
    """The chooser that a sweep wants; ModuleNotFoundError without the extra `sweep`,
    if it needs that. InvalidInputError for a method or a pruner that is not known.
    """
    if spec.method in ("grid", "random") and spec.pruner is None:
        return PlainChooser(spec)
    from gpuyard.sweeps.optuna_chooser import OptunaChooser

    return OptunaChooser(spec, PlainChooser(spec))
