"""What may be known about a secret: everything but its value."""

from pydantic import BaseModel


class SecretFacts(BaseModel):
    """A secret. `source` is `store`, `environment` or `folder`. Only jobs of its
    `owner` get it; without one, it is shared, and all may have it, unless it is
    `reserved`: then the server itself needs it, and no job gets it. Times are UTC
    seconds.
    """

    name: str
    owner: str | None = None
    source: str
    set_at: float | None = None
    used_at: float | None = None
    reserved: bool = False
