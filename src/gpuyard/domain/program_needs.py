"""What gpuyard has read off a training program, and what was measured of its runs."""

from typing import Annotated

from pydantic import Field

from gpuyard.domain.spec_values import Digest
from gpuyard.domain.strict_model import StrictModel

_Positive = Annotated[float, Field(gt=0, le=1e18)]
_Count = Annotated[int, Field(ge=0, le=1_000_000)]


class ProgramNeeds(StrictModel):
    """What was read off a program before its job was submitted; clients fill it in.

    `digest` is the SHA-256 of the file that is run. Programs of one `kind` (a SHA-256)
    have the same model, optimiser, precision, batch and length of sequences; None where
    the size of the model is not known. `gpus` are all that it uses, `memory_gb` was
    computed for each of them, and `teraflops` are the 10^12 operations of all of the
    training, as far as that is known.
    """

    digest: Digest
    kind: Digest | None = None
    gpus: _Count = 0
    memory_gb: _Positive | None = None
    teraflops: _Positive | None = None


class MeasuredTime(StrictModel):
    """How long the same training ran on GPUs of a class, in seconds: the median of so
    many runs. `job_id` is the newest of them.
    """

    gpu_class: str
    seconds: float
    runs: int
    job_id: str


class MeasuredProgram(StrictModel):
    """What the asker's own runs of a program have used.

    `peak_gb` is the most memory that one GPU had in use in `runs` runs, and `job_id`
    the job with that peak. `failed_on_gb`: since then, the job `failed_job_id` has run
    out of memory on a GPU with so much. `is_changed`: all of that was an earlier
    version of the program.
    """

    runs: int = 0
    peak_gb: float | None = None
    job_id: str | None = None
    failed_on_gb: float | None = None
    failed_job_id: str | None = None
    is_changed: bool = False
    times: list[MeasuredTime] = Field(default_factory=list[MeasuredTime])


class LearnedFactors(StrictModel):
    """What runs of all programs of one kind have taught, whoever ran them; nothing in
    it says who.

    `memory` times the computed memory is what they took. `gpu_s_per_teraflop`: by class
    of GPU, how many seconds one GPU needs for 10^12 operations. `runs` is rounded down
    where some are of projects that do not exist for who asks.
    """

    runs: int
    memory: float | None = None
    gpu_s_per_teraflop: dict[str, float] = Field(default_factory=dict[str, float])


class MeasuredNeeds(StrictModel):
    """What is known from runs of a program; None where nothing was measured."""

    own: MeasuredProgram | None = None
    alike: LearnedFactors | None = None
