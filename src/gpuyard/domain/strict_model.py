"""The base of the models that are read from input."""

from pydantic import BaseModel, ConfigDict


class StrictModel(BaseModel):
    """A model that cannot be changed. An unknown field is an error, and so is a number
    that is not finite.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
