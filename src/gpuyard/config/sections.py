"""What the sections of the settings are made of."""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from gpuyard.domain import units

Seconds = Annotated[float, BeforeValidator(units.seconds), Field(ge=0)]
Period = Annotated[float, BeforeValidator(units.seconds), Field(gt=0)]
Gigabytes = Annotated[float, BeforeValidator(units.memory_gb), Field(gt=0)]


class Section(BaseModel):
    """A table of the settings: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")
