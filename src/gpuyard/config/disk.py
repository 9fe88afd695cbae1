"""The settings of disks: what is kept free, and when to warn."""

from typing import Annotated

from pydantic import Field

from gpuyard.config.sections import Period, SettingsSection


class DiskSettings(SettingsSection):
    """`reserve_mb`: the size of a file in the home that keeps room for the ledger (0:
    none; see the guide on full disks).

    Each node looks every `look_s` at the disk of its home, and at what each running job
    takes of it. When it is `warn_percent` full, the job that takes most is named.
    """

    reserve_mb: Annotated[float, Field(ge=0, le=100_000)] = 64.0
    look_s: Period = 30.0
    warn_percent: Annotated[float, Field(gt=0, le=100)] = 90.0
