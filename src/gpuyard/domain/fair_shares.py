"""Fair shares as the API tells them."""

from pydantic import BaseModel, ConfigDict


class FairShare(BaseModel):
    """The share of an organisation, a project or a user (`level`), and what they have
    used.

    `organisation`, `project` and `user` say whose it is; `user` is null on the other
    levels, and the owner of the instance is `owner`. `shares` count among those that
    stand in the same. `due` and `used` are parts, from 0 to 1, of all that is due and
    of all that was used; `times` is how many times its share it has used, null where
    nobody has used anything. `gpu_hours`: what was used, decayed until now.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    level: str
    organisation: str | None = None
    project: str | None = None
    user: str | None = None
    shares: float
    due: float
    used: float
    times: float | None = None
    gpu_hours: float


class FairShares(BaseModel):
    """The shares of all, from organisations down to users.

    `policy` is that of the scheduler: only under `fair` do shares count, and there are
    no items under others. `half_life_s`: after so many seconds, what was used counts
    half.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    policy: str
    half_life_s: float
    items: list[FairShare]
    next: str | None = None
