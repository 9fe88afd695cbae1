"""Finds providers, ours and third parties': the entry points `gpuyard.providers`."""

from collections.abc import Mapping
from difflib import get_close_matches
from importlib.metadata import entry_points
from typing import Any

from gpuyard.config.settings import StorageSettings
from gpuyard.domain.errors import InvalidInputError, ProviderError
from gpuyard.providers.base import GpuProviderInterface
from gpuyard.providers.extras import MissingExtraError

GROUP = "gpuyard.providers"


def names() -> list[str]:
    """The providers that are installed."""
    return sorted(point.name for point in entry_points(group=GROUP))


def load(
    name: str, config: Mapping[str, Any], storage: StorageSettings | None = None
) -> GpuProviderInterface:
    """Make the provider of this name. It gets `storage` if it `wants_storage`.

    InvalidInputError for an unknown name, ProviderError when it cannot be imported.
    """
    found = [point for point in entry_points(group=GROUP) if point.name == name]
    if not found:
        near = get_close_matches(name, names(), n=2, cutoff=0.4) or names()
        raise InvalidInputError.of(
            "provider",
            f"there is no provider {name!r}",
            f"installed: {', '.join(near)}",
        )
    try:
        provider = found[0].load()
    except MissingExtraError as error:
        raise ProviderError(f"{error}.", name, "IMPORT") from error
    except (ImportError, AttributeError, SyntaxError) as error:
        raise ProviderError(
            f"Provider {name} cannot be loaded: {error}.",
            name,
            "IMPORT",
        ) from error
    if not (isinstance(provider, type) and issubclass(provider, GpuProviderInterface)):
        raise ProviderError(
            f"Provider {name} cannot be used: {found[0].value} is no provider.",
            name,
            "IMPORT",
        )
    if storage and provider.wants_storage:
        config = {**config, "storage": storage}
    return provider(config)
