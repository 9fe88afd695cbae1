"""The settings of jobs: what a submission takes along."""

from typing import Annotated

from pydantic import Field

from gpuyard.config.sections import SettingsSection

NamePattern = Annotated[str, Field(min_length=1)]


class JobSettings(SettingsSection):
    """`never_carry`: patterns such as `AWS_*`, of variables that no job takes along
    from the shell that submits it; they add to those that never are (see the guide on
    job files).
    """

    never_carry: tuple[NamePattern, ...] = ()
