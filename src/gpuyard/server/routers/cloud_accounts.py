"""`/api/v1/providers/{name}/check`, `/prices` and `/bill`: the account at a cloud; and
`/api/v1/bills`: the bills that were compared last.
"""

from datetime import date

from pydantic import BaseModel

from gpuyard.domain.bills import BillComparison, StoredBill
from gpuyard.domain.cloud_accounts import AccountCheck, CataloguePrice
from gpuyard.server.api_router import api_router
from gpuyard.server.dependencies import TheAppState

router = api_router("/providers", tag="machines")
bills = api_router(tag="costs")


class PricePage(BaseModel):
    """A catalogue of prices, by region and type."""

    items: list[CataloguePrice]
    next: str | None = None


@router.post("/{name}/check")
async def check_account(app_state: TheAppState, name: str) -> AccountCheck:
    """Which permissions the account of a provider lacks at its cloud, and what gpuyard
    needs each for. Nothing is rented.
    """
    return await app_state.controller.cloud_accounts.check(name)


@router.get("/{name}/prices")
async def list_prices(app_state: TheAppState, name: str) -> PricePage:
    """The list prices that a provider goes by when its cloud tells none."""
    accounts = app_state.controller.cloud_accounts
    return PricePage(items=list(await accounts.prices(name, refresh=False)))


@router.post("/{name}/prices/refresh")
async def refresh_prices(app_state: TheAppState, name: str) -> PricePage:
    """Read these prices anew from the cloud, and keep them in the home of the
    instance.
    """
    accounts = app_state.controller.cloud_accounts
    return PricePage(items=list(await accounts.prices(name, refresh=True)))


@router.post("/{name}/bill")
async def compare_bill(
    app_state: TheAppState, name: str, day: date | None = None
) -> BillComparison:
    """What the cloud of a provider bills for a day (`2026-11-27`), beside what gpuyard
    has counted: each machine, with the difference and why. The cloud is asked, and AWS
    charges for the question. Without `day`, the newest that should be complete.
    """
    return await app_state.controller.cloud_bills.compare(name, day)


class BillPage(BaseModel):
    """The bills that were compared last, by provider."""

    items: list[StoredBill]
    next: str | None = None


@bills.get("/bills")
async def list_bills(app_state: TheAppState) -> BillPage:
    """The last comparison of the bill of each cloud where machines are rented. No cloud
    is asked: see `POST /api/v1/providers/{name}/bill`.
    """
    return BillPage(items=app_state.controller.cloud_bills.stored())
