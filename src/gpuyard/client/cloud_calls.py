"""The calls about the accounts of providers at their clouds."""

from gpuyard.client.calls import Call
from gpuyard.client.segments import segment
from gpuyard.domain.bills import BillComparison
from gpuyard.domain.cloud_accounts import AccountCheck, CataloguePrice


def check_account(provider: str) -> Call[AccountCheck]:
    """Which permissions the account of a provider lacks."""
    path = f"/api/v1/providers/{segment(provider)}/check"
    return Call("POST", path, AccountCheck.model_validate, done_once=True)


def prices(provider: str, *, refresh: bool) -> Call[list[CataloguePrice]]:
    """The catalogue of a provider's prices; with `refresh` read anew."""
    path = f"/api/v1/providers/{segment(provider)}/prices"
    return Call(
        "POST" if refresh else "GET",
        f"{path}/refresh" if refresh else path,
        lambda a: [CataloguePrice.model_validate(item) for item in a["items"]],
        done_once=True,
    )


def compare_bill(provider: str, day: str | None) -> Call[BillComparison]:
    """The bill of a provider's cloud for a day (`2026-11-27`) beside the ledger."""
    path = f"/api/v1/providers/{segment(provider)}/bill"
    query = {"day": day} if day else {}
    return Call("POST", path, BillComparison.model_validate, params=query)
