"""The base of the models that are read from input."""

from pydantic import BaseModel, ConfigDict


class StrictModel(BaseModel):
    """A model that cannot be changed, and for which an unknown field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")
