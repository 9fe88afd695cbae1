"""Lines of the audit log as the API tells them. Times are UTC seconds."""

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field


class AuditEvent(StrEnum):
    """What a line is about."""

    ADMITTED = "admitted"
    REFUSED = "refused"
    ACT = "act"


class AuditLine(BaseModel):
    """Who was admitted or refused, or changed something (`act`), `count` times since
    `since`.

    `who` is the user that sent it, and `for` the user for whom it counts, if that is
    another; null for the owner of the instance, or nobody. `from` is an address.
    `outcome` is how somebody was admitted, why a request was refused, or the status of
    its answer.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    at: float
    since: float
    event: AuditEvent
    who: str | None = None
    acts_for: str | None = Field(default=None, alias="for")
    address: str = Field(default="", alias="from")
    what: str = ""
    outcome: str = ""
    count: int = 1
