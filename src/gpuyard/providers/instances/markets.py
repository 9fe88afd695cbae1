"""The markets of a cloud as offers, and the choice of one where nobody has chosen."""

from collections.abc import Iterable
from decimal import Decimal

from gpuyard.domain.attempt_order import AttemptOrder
from gpuyard.domain.errors import ProviderError
from gpuyard.domain.gpus import resolve_gpu_class
from gpuyard.domain.offers import Offer
from gpuyard.providers.instances.api import PRICE, Instance, Market
from gpuyard.providers.instances.extras import with_extras
from gpuyard.providers.instances.settings import InstanceSettings
from gpuyard.providers.placing import suits

USUAL_BOOT_S = 180.0
"""How long a machine is expected to need until its job starts."""


def offer_id(provider: str, market: Market) -> str:
    """Stays the same from one reading to the next."""
    kind = "spot" if market.spot else "on-demand"
    return f"{provider}/{market.zone}/{market.type.name}/{kind}"


def market_of(instance: Instance, markets: Iterable[Market]) -> Market | None:
    """The market in which a machine was rented; None if that is none of these."""
    kind = (instance.zone, instance.type, instance.spot)
    found = (one for one in markets if (one.zone, one.type.name, one.spot) == kind)
    return next(found, None)


def offer_of(provider: str, market: Market) -> Offer:
    """A market in the form that all providers have."""
    machine = market.type
    return Offer(
        id=offer_id(provider, market),
        provider=provider,
        gpu=machine.gpu,
        gpus=machine.gpus,
        gpu_memory_gb=machine.gpu_memory_gb,
        gpu_capability=machine.capability,
        cpus=machine.cpus,
        memory_gb=machine.memory_gb,
        region=market.region,
        zone=market.zone,
        spot=market.spot,
        containers=True,
        artifacts=True,
        datasets=True,
        price_per_hour=market.total_per_hour,
        currency=market.currency,
        price_source=market.price_source,
        parts=market.parts,
        billed=True,
        wait_s=USUAL_BOOT_S,
        problem=market.problem,
        for_gpu_jobs=machine.gpus > 0,
    )


def offered(
    markets: Iterable[Market], provider: str, settings: InstanceSettings
) -> list[Market]:
    """Those that the settings allow, with all that their machines cost."""
    found = with_extras(markets, provider, settings)
    return [market for market in found if is_offered(market, settings)]


def is_offered(market: Market, settings: InstanceSettings) -> bool:
    """Whether the settings allow this market."""
    if market.spot and not settings.spot:
        return False
    price = market.total_per_hour
    limit = settings.max_price
    if limit is not None and (price is None or price > limit):
        return False
    return not settings.types or _is_named(market, settings.types)


def spot_bid(
    provider: str, market: Market, settings: InstanceSettings
) -> Decimal | None:
    """The most that a machine of this market may cost an hour by itself: what
    `max_price` leaves beside its disk, its address and its traffic. None on demand, and
    without a `max_price`. ProviderError if nothing is left.
    """
    limit = settings.max_price
    if limit is None or not market.spot:
        return None
    others = market.others_per_hour
    if others >= limit:
        raise ProviderError(
            f"max_price is {limit:f} {market.currency} an hour, and the disk, address"
            f" and traffic of {market.type.name} in {market.zone} cost {others:f}:"
            f" nothing is left for the machine. Raise max_price, or lower disk_gb.",
            provider,
            PRICE,
        )
    return limit - others


def _is_named(market: Market, names: Iterable[str]) -> bool:
    return any(name == market.type.name or _is_class(market, name) for name in names)


def _is_class(market: Market, name: str) -> bool:
    """Whether its GPUs are of the class that the name means; the name of a GPU alone,
    such as A100, does not tell 40 from 80 GB.
    """
    try:
        wanted = resolve_gpu_class(name)
    except ValueError:
        return False
    classes = offer_of("", market).classes
    return bool(classes) and classes <= wanted


def cheapest(
    provider: str, markets: Iterable[Market], order: AttemptOrder
) -> Market | None:
    """The cheapest market with what the order asks for; None if there is none."""
    found = [
        market
        for market in markets
        if not market.problem
        and (order.spot or not market.spot)
        and suits(offer_of(provider, market), order.gpu_spec)
    ]
    return min(found, key=_price, default=None)


def _price(market: Market) -> Decimal:
    return market.total_per_hour or Decimal(0)
