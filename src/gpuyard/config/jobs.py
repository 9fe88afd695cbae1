"""The settings of jobs: what a submission takes along."""

from typing import Annotated

from pydantic import Field

from gpuyard.config.sections import Megabytes, SettingsSection

NamePattern = Annotated[str, Field(min_length=1)]


class JobSettings(SettingsSection):
    """`never_carry`: patterns such as `AWS_*`, of variables that no job takes along
    from the shell that submits it; they add to those that never are (see the guide on
    job files).

    With `live`, jobs run the code as it is when they start; else as it was when they
    were submitted, if a folder has at most `code_files` files of code with `code_mb`.

    Of each job, at most `metric_points` points of its metrics are stored.
    """

    never_carry: tuple[NamePattern, ...] = ()
    live: bool = False
    code_files: int = Field(default=2000, ge=1)
    code_mb: Megabytes = 50.0
    metric_points: int = Field(default=1_000_000, ge=1)
