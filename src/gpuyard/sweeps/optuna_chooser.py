"""Optuna's samplers and pruners, through its public ask-and-tell interface.

Its study is in memory and made anew from the runs, so it needs no database of its own.
"""

import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import optuna

from gpuyard.domain.errors import InvalidInputError, quoted
from gpuyard.sweeps.choosers import Curve, PlainChooser
from gpuyard.sweeps.space import Choice, Parameter
from gpuyard.sweeps.spec import SweepSpec
from gpuyard.sweeps.sweep import Run

# Others need all trials of one process (QMC), or are a grid, which we have.
_SAMPLERS = {
    "tpe": "TPESampler",
    "gp": "GPSampler",
    "cmaes": "CmaEsSampler",
    "nsgaii": "NSGAIISampler",
}
# Optuna imports these when it is asked for values, and that is too late.
_NEEDED = {"cmaes": ("cmaes",), "gp": ("scipy", "torch")}
_PRUNERS = {
    "median": "MedianPruner",
    "percentile": "PercentilePruner",
    "successive-halving": "SuccessiveHalvingPruner",
    "hyperband": "HyperbandPruner",
    "threshold": "ThresholdPruner",
}


class OptunaChooser:
    """Values by a sampler of Optuna, or by `plain`; runs are given up by a pruner."""

    def __init__(self, spec: SweepSpec, plain: PlainChooser) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._spec = spec
        self._plain = plain
        self._space = spec.space()
        self._distributions = {
            name: _distribution(parameter) for name, parameter in self._space.items()
        }
        self._study = optuna.create_study(
            direction=spec.goal, sampler=self._sampler(0), pruner=_pruner(spec)
        )
        self._trials: dict[int, optuna.trial.Trial] = {}
        self._reported: dict[int, int] = {}

    def choose(self, number: int) -> dict[str, str]:
        """The sampler's values, or those of the grid or of chance."""
        if self._spec.method in ("grid", "random"):
            return self._plain.choose(number)
        # A sampler that is made anew would repeat itself with the same seed.
        self._study.sampler = self._sampler(number)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trial = self._study.ask(self._distributions)
        self._trials[number] = trial
        return self._texts(trial.params)

    def begin(self, number: int, parameters: Mapping[str, str]) -> None:
        """Make Optuna know a run that it has not chosen, or not so."""
        asked = self._trials.get(number)
        if asked is not None:
            if self._texts(asked.params) == dict(parameters):
                return
            self._study.tell(asked, state=optuna.trial.TrialState.FAIL)
        values = {
            name: text if isinstance(parameter, Choice) else parameter.number(text)
            for name, parameter in self._space.items()
            if (text := parameters.get(name)) is not None
        }
        self._study.enqueue_trial(values)
        self._trials[number] = self._study.ask(self._distributions)

    def should_prune(self, number: int, curve: Curve) -> bool:
        """What the pruner says at any of the points that are new."""
        trial = self._trials[number]
        known = self._reported.get(number, 0)
        self._reported[number] = len(curve)
        for step, value in curve[known:]:
            if step < 0:
                continue
            trial.report(value, step)
            if self._spec.pruner and trial.should_prune():
                return True
        return False

    def end(self, run: Run, curve: Curve) -> None:
        """Tell what it came to."""
        self.should_prune(run.number, curve)
        trial = self._trials.pop(run.number)
        if run.outcome == "completed" and run.value is not None:
            self._study.tell(trial, run.value)
        elif run.outcome == "pruned":
            self._study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        else:
            self._study.tell(trial, state=optuna.trial.TrialState.FAIL)

    def _texts(self, values: Mapping[str, Any]) -> dict[str, str]:
        return {
            name: str(values[name])
            if isinstance(parameter, Choice)
            else parameter.text(values[name])
            for name, parameter in self._space.items()
        }

    def _sampler(self, number: int) -> optuna.samplers.BaseSampler:
        """The sampler with the seed of a run."""
        method = self._spec.method
        seed = self._spec.seed_of(number)
        if method in ("grid", "random"):
            return optuna.samplers.RandomSampler(seed=seed)
        options = {**self._spec.method_options, "seed": seed}
        return _made("method", optuna.samplers, _SAMPLERS, method, options)


def _pruner(spec: SweepSpec) -> optuna.pruners.BasePruner:
    if spec.pruner is None:
        return optuna.pruners.NopPruner()
    options = spec.pruner_options
    return _made("pruner", optuna.pruners, _PRUNERS, spec.pruner, options)


def _made(
    field: str,
    module: Any,
    known: Mapping[str, str],
    name: str,
    options: Mapping[str, Any],
) -> Any:
    """What Optuna calls by another name, with these options; InvalidInputError."""
    if name not in known:
        own = ["grid", "random"] if field == "method" else []
        remedy = f"use {', '.join([*own, *known])}"
        raise InvalidInputError.of(field, f"is {quoted(name)}", remedy)
    lacking = [one for one in _NEEDED.get(name, ()) if find_spec(one) is None]
    if lacking:
        remedy = f"pip install {' '.join(lacking)}"
        raise InvalidInputError.of(
            field, f"is {name}, which needs {' and '.join(lacking)}", remedy
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return getattr(module, known[name])(**options)
    except (TypeError, ValueError) as error:
        remedy = f"see {known[name]} in Optuna's documentation"
        fault = f"does not suit {name}: {error}"
        raise InvalidInputError.of(f"{field}_options", fault, remedy) from None


def _distribution(
    parameter: Parameter,
) -> optuna.distributions.BaseDistribution:
    if isinstance(parameter, Choice):
        return optuna.distributions.CategoricalDistribution(parameter.values)
    if parameter.whole:
        return optuna.distributions.IntDistribution(
            int(parameter.low),
            int(parameter.high),
            log=parameter.log,
            step=int(parameter.step or 1),
        )
    return optuna.distributions.FloatDistribution(
        parameter.low, parameter.high, log=parameter.log, step=parameter.step
    )
