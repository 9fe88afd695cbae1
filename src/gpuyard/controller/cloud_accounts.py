"""The accounts of providers at their clouds: permissions that are missing, and the
catalogues of prices.
"""

from collections.abc import Sequence
from dataclasses import asdict
from difflib import get_close_matches

from gpuyard.domain.cloud_accounts import (
    AccountCheck,
    CataloguePrice,
    MissingPermission,
)
from gpuyard.domain.errors import NotFoundError, RefusedError
from gpuyard.providers.base import GpuProviderInterface
from gpuyard.providers.configured import Providers


class CloudAccounts:
    """Asks the configured providers."""

    def __init__(self, providers: Providers) -> None:
        self._providers = providers

    async def check(self, name: str) -> AccountCheck:
        """Which permissions the account of a provider lacks. NotFoundError for a
        provider that is not configured, ProviderError if the cloud does not answer.
        """
        found = await self.find(name).missing_rights()
        missing = [
            MissingPermission(action=right.action, needed_for=right.needed_for)
            for right in found or ()
        ]
        return AccountCheck(
            provider=name,
            checked=found is not None,
            missing=missing,
            message=_in_words(name, found is not None, len(missing)),
        )

    async def prices(self, name: str, *, refresh: bool) -> Sequence[CataloguePrice]:
        """The catalogue of a provider's prices; read anew with `refresh`. RefusedError
        for a provider without one; otherwise as `check`.
        """
        found = await self.find(name).list_prices(refresh=refresh)
        if found is None:
            raise RefusedError(
                f"Provider {name} has no catalogue of prices.",
                "`gpuyard offers` shows what its offers cost.",
            )
        return [CataloguePrice(**asdict(row)) for row in found]

    def find(self, name: str) -> GpuProviderInterface:
        """A configured provider; NotFoundError."""
        provider = self._providers.get(name)
        if provider is None:
            near = get_close_matches(name, self._providers, n=2, cutoff=0.4)
            raise NotFoundError(
                f"No provider {name!r} is configured.",
                f"There are: {', '.join(near or sorted(self._providers))}.",
            )
        return provider


def _in_words(name: str, checked: bool, missing: int) -> str:
    if not checked:
        return (
            f"{name} has no permissions to check; `gpuyard providers` shows its health."
        )
    if missing:
        return f"{name} lacks {missing} of the permissions that gpuyard needs."
    return f"{name} has all permissions that gpuyard needs."
