"""The settings of disks: when to warn that one fills up."""

from typing import Annotated

from pydantic import Field

from gpuyard.config.sections import Period, SettingsSection


class DiskSettings(SettingsSection):
    """Each node looks every `look_s` at the disk of its home, and at what each running
    job takes of it. When it is `warn_percent` full, the job that takes most is named.
    """

    look_s: Period = 30.0
    warn_percent: Annotated[float, Field(gt=0, le=100)] = 90.0
