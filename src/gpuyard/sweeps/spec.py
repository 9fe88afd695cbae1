"""What a sweep is to try: the job, its parameters, and what to look for."""

import random
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from gpuyard.domain.errors import InvalidInputError, quoted
from gpuyard.domain.spec_values import Name
from gpuyard.domain.strict_model import StrictModel
from gpuyard.domain.validation import faults_of
from gpuyard.sweeps import space

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
# Each has a meaning of its own in braces.
_RESERVED = ("trial", "seed", "path", "i")
# So that the names of runs, and of what is pruned, still fit.
SweepName = Annotated[Name, Field(max_length=150)]


class SweepSpec(StrictModel):
    """A sweep: `job` is a JobSpec's JSON, whose program is run with other `parameters`
    each time.

    `trials`: how many runs; None: the whole grid. `parallel`: how many at once.
    `method`: `grid`, `random`, or a sampler of Optuna. `take`: the metric's `last`
    value of a run counts, or its `best`. When the first `max_failures` runs have
    failed, no more are started.
    """

    name: SweepName
    metric: Name
    goal: Literal["minimize", "maximize"] = "minimize"
    take: Literal["last", "best"] = "last"
    method: Name = "grid"
    method_options: dict[str, Any] = Field(default_factory=dict)
    pruner: Name | None = None
    pruner_options: dict[str, Any] = Field(default_factory=dict)
    trials: Annotated[int, Field(ge=1, le=100_000)] | None = None
    parallel: Annotated[int, Field(ge=1, le=1000)] = 1
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    max_failures: Annotated[int, Field(ge=1)] = 3
    parameters: dict[str, Any]
    job: dict[str, Any]

    @model_validator(mode="after")
    def _parameters_have_names(self) -> Self:
        if not self.parameters:
            raise ValueError(
                "@parameters@is empty; give at least one, such as --param lr=0.1,0.01"
            )
        for name in self.parameters:
            if not _NAME.fullmatch(name) or name in _RESERVED or len(name) > 100:
                raise ValueError(
                    f"@parameters@has the name {quoted(name)}; use letters, digits, _,"
                    f" . and -, and none of {', '.join(_RESERVED)}"
                )
        return self

    def space(self) -> dict[str, space.Parameter]:
        """Its parameters; InvalidInputError."""
        return {
            name: space.parse(f"param {name}", given)
            for name, given in self.parameters.items()
        }

    def count(self) -> int:
        """How many runs it has."""
        if self.method != "grid":
            return self.trials or 1
        cells = space.grid(self.space())
        return min(cells, self.trials or cells)

    def seed_of(self, number: int) -> int:
        """The seed of a run; always the same."""
        return random.Random(f"{self.seed}/run/{number}").getrandbits(31)


def parse(fields: Mapping[str, Any]) -> SweepSpec:
    """A sweep from what flags and a file give; InvalidInputError names the field."""
    given = dict(fields)
    if "method" not in given and given.get("trials") is not None:
        given["method"] = "random"
    try:
        spec = SweepSpec.model_validate(given)
    except ValidationError as error:
        raise InvalidInputError(faults_of(error, SweepSpec)) from None
    if spec.method != "grid" and spec.trials is None:
        fault = f"is missing, and {spec.method} has no end of its own"
        raise InvalidInputError.of("trials", fault, "give --trials N")
    spec.count()
    return spec
