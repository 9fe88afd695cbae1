"""The settings of GPUs: from when on to warn, and how much of one models may share."""

from typing import Annotated

from pydantic import Field

from gpuyard.config.sections import Seconds, SettingsSection

_Percent = Annotated[float, Field(ge=0, le=100)]


class GpuSettings(SettingsSection):
    """When to warn of a GPU (see the guide on models; 0: never): from
    `warn_temperature_c` on, when its memory is `warn_memory_percent` full, and when its
    hardware has slowed it down for `warn_power_s`; with `warn_power_limit`, also when
    its power limit has.

    Models that share a GPU may take `models_percent` of its memory together. A model
    that is alone on a GPU may take all of it.
    """

    warn_temperature_c: Annotated[float, Field(ge=0, le=200)] = 75.0
    warn_memory_percent: _Percent = 95.0
    warn_power_s: Seconds = 60.0
    warn_power_limit: bool = False
    models_percent: Annotated[float, Field(gt=0, le=100)] = 80.0
