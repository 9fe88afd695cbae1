"""The datasets of containers: copies on this host, which they see read-only."""

# docker-py has no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from docker.models.containers import Container
from docker.types import Mount

from gpuyard.domain.attempt_order import AttemptOrder
from gpuyard.domain.errors import InvalidInputError, ProviderError
from gpuyard.providers.docker.config import DockerConfig
from gpuyard.providers.docker.container import HOME, is_live
from gpuyard.providers.docker.daemon import DockerDaemon
from gpuyard.storage.dataset_cache import DatasetCache
from gpuyard.storage.dataset_copies import StoredParts, have_copy
from gpuyard.storage.dataset_store import DatasetMissingError, DatasetStores
from gpuyard.storage.place import in_background


class ContainerDatasets:
    """Has the datasets of containers in a cache of their own."""

    def __init__(self, settings: DockerConfig, daemon: DockerDaemon) -> None:
        home = Path(settings.home)
        self._home = settings.home
        self._daemon = daemon
        self._root = home / "docker-datasets"
        limit = int(settings.dataset_cache_gb * 1e9)
        self._cache = DatasetCache(self._root, limit, lambda: self._in_use)
        self._read = StoredParts(DatasetStores(home, settings.storage))
        # By digest, whether a container that runs reads it.
        self._in_use: dict[str, bool] = {}
        # One at a time: what one needs is not removed to make room for another.
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def mounted(self, order: AttemptOrder) -> AsyncGenerator[list[Mount]]:
        """Have the datasets of an attempt here until its container is made; where it is
        to have them. ProviderError if one is not stored, OSError if there is no room.
        """
        if not order.datasets:
            yield []
            return
        async with self._lock:
            self._in_use = await self._used()
            for mount in order.datasets:
                try:
                    await in_background(have_copy, self._cache, mount, self._read)
                except (DatasetMissingError, InvalidInputError) as error:
                    message = f"{mount.variable}: {error}"
                    raise ProviderError(message, "docker", "DATASET_MISSING") from None
                self._in_use.setdefault(mount.digest, False)
            yield [
                Mount(
                    mount.path,
                    str(self._cache.folder(mount.digest)),
                    type="bind",
                    read_only=True,
                )
                for mount in order.datasets
            ]

    async def _used(self) -> dict[str, bool]:
        """The versions that containers of this home see, and whether one runs."""
        client = await self._daemon.client()
        filters = {"label": f"{HOME}={self._home}"}
        found: list[Container] = await self._daemon.call(
            client.containers.list, all=True, filters=filters
        )
        used: dict[str, bool] = {}
        for container in found:
            for mount in container.attrs.get("Mounts", ()):
                source = Path(mount.get("Source") or "/")
                if source.is_relative_to(self._root):
                    digest = source.relative_to(self._root).parts[0]
                    used[digest] = used.get(digest, False) or is_live(container)
        return used
