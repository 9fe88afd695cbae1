"""What a provider says of its account at a cloud, as the API tells it."""

from decimal import Decimal

from gpuyard.domain.strict_model import StrictModel


class MissingPermission(StrictModel):
    """A permission that the account lacks: `action` in the cloud's words, and what
    gpuyard needs it for.
    """

    action: str
    needed_for: str


class AccountCheck(StrictModel):
    """Whether the account of a provider has the permissions that gpuyard needs.

    `checked` is false for a provider that knows of no permissions. `message` says the
    same for people.
    """

    provider: str
    checked: bool
    missing: list[MissingPermission]
    message: str


class CataloguePrice(StrictModel):
    """The on-demand price per hour of a type of machine in a region. `date`
    (`2026-11-29`) says when its `source` had it.
    """

    type: str
    region: str
    price_per_hour: Decimal
    currency: str
    source: str
    date: str
