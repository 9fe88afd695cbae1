"""The calls about the accounts of providers at their clouds."""

from gpuyard.client.calls import Call
from gpuyard.client.segments import segment
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
