"""The providers of one gpuyard server: this host, and those in the settings."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuyard.config.paths import Home
from gpuyard.config.settings import Settings, StorageSettings
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.own_nodes import OWN_NODES
from gpuyard.providers import local, registry
from gpuyard.providers.base import GpuProviderInterface
from gpuyard.providers.instances.provider import RentedProvider
from gpuyard.providers.node_provider import NodeProvider

MakeProviders = Callable[[int], Mapping[str, GpuProviderInterface]]
"""Makes the providers, by name, for the epoch of a server's lease."""


class Providers(dict[str, GpuProviderInterface]):
    """Providers by name. Each one is a NodeProvider or an external queue."""

    def node_provider(self, name: str) -> NodeProvider | None:
        """The provider of this name, if its nodes have agents."""
        provider = self.get(name)
        return provider if isinstance(provider, NodeProvider) else None

    def agents_of(self, name: str) -> NodeProvider | None:
        """Who has the links to the agents that run this provider's attempts, if agents
        run them.
        """
        provider = self.get(name)
        if isinstance(provider, RentedProvider):
            return provider.agents.link
        return self.node_provider(name)

    @property
    def rented(self) -> dict[str, RentedProvider]:
        """Those that rent a machine for each attempt."""
        return {
            name: provider
            for name, provider in self.items()
            if isinstance(provider, RentedProvider)
        }

    @property
    def node_providers(self) -> dict[str, NodeProvider]:
        """Those whose nodes have agents."""
        return {
            name: provider
            for name, provider in self.items()
            if isinstance(provider, NodeProvider)
        }

    @property
    def external_queues(self) -> dict[str, GpuProviderInterface]:
        """Those that place jobs themselves and are polled."""
        return {
            name: provider
            for name, provider in self.items()
            if not isinstance(provider, NodeProvider)
        }


def configured_providers(home: Path, settings: Settings) -> MakeProviders:
    """Makes the provider of this host and those that the settings name.

    InvalidInputError names the setting that is wrong.
    """
    others = {
        name: _load(name, {"home": str(home), **section}, settings.storage)
        for name, section in settings.providers.items()
        if section.get("enabled", True)
    }

    def make(epoch: int) -> Mapping[str, GpuProviderInterface]:
        config: dict[str, Any] = {
            "home": str(home),
            "epoch": epoch,
            "heartbeat_s": settings.node.heartbeat_s,
        }
        if settings.billing.local_price_per_hour is not None:
            config["price_per_hour"] = settings.billing.local_price_per_hour
        return {OWN_NODES: registry.load(OWN_NODES, config), **others}

    return make


def _load(
    name: str, config: Mapping[str, Any], storage: StorageSettings
) -> GpuProviderInterface:
    try:
        return registry.load(name, config, storage)
    except InvalidInputError as error:
        faults = [
            replace(fault, field=_setting(name, fault.field)) for fault in error.faults
        ]
        raise InvalidInputError(faults) from None


def _setting(provider: str, field: str) -> str:
    """The path in the settings of a provider's field."""
    return "providers" if field == "provider" else f"providers.{provider}.{field}"


async def keep_host_agent(home: Home) -> None:
    """Keep the agent of this host alive until cancelled; it finds the leader itself."""
    await local.keep_keeper(home)


def stop_host_agent(home: Home) -> None:
    """End the agent of this host and its keeper. Running jobs go on."""
    local.stop_keeper(home)
