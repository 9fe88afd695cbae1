"""The base class and the types of the settings' sections."""

from typing import Annotated

from pydantic import BeforeValidator, Field

from gpuyard.domain import units
from gpuyard.domain.strict_model import StrictModel

Seconds = Annotated[float, BeforeValidator(units.seconds), Field(ge=0)]
Period = Annotated[float, BeforeValidator(units.seconds), Field(gt=0)]
Gigabytes = Annotated[float, BeforeValidator(units.memory_gb), Field(gt=0)]


class SettingsSection(StrictModel):
    """A table of the settings: frozen, and an unknown key is an error."""
