"""What may be known about a secret: everything but its value."""

from pydantic import BaseModel


class SecretFacts(BaseModel):
    """A secret. `source` is `store`, `environment` or `folder`. Times are UTC
    seconds.
    """

    name: str
    source: str
    set_at: float | None = None
    used_at: float | None = None
