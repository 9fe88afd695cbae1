"""The datasets of attempts, on their node: made from the chunks that the server has
stored, in its store or over connections to it.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from gpuyard.config.paths import Home
from gpuyard.config.settings import NodeSettings
from gpuyard.domain.contents import ContentKind
from gpuyard.domain.datasets import DatasetMount
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.reasons import Reason
from gpuyard.node.fetching import Fetching
from gpuyard.node.launcher import LaunchError
from gpuyard.storage.blobs import BucketError
from gpuyard.storage.dataset_cache import DatasetCache
from gpuyard.storage.dataset_copies import ReadPart, have_copy
from gpuyard.storage.dataset_store import DatasetMissingError
from gpuyard.storage.place import in_background


class _StoppedError(Exception):
    """The attempt that wanted the copy needs it no longer."""


class FetchedParts:
    """Fetches parts from the server, on a machine that has joined an instance."""

    def __init__(self, fetching: Fetching) -> None:
        self._fetching = fetching
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self) -> None:
        """Call this in the event loop of the agent."""
        self._loop = asyncio.get_running_loop()

    def __call__(self, kind: ContentKind, mount: DatasetMount, digest: str) -> bytes:
        """See ReadPart."""
        assert self._loop
        work = self._fetching.dataset_part(kind, mount.project, digest)
        content = asyncio.run_coroutine_threadsafe(work, self._loop).result()
        if content is None:
            fault = f"a part of it ({digest[:12]}) is no longer stored"
            raise DatasetMissingError(fault)
        return content


class NodeDatasets:
    """Has the datasets of attempts in `cache`."""

    def __init__(self, cache: DatasetCache, read: ReadPart) -> None:
        self._cache = cache
        self._read = read
        # Of several attempts with the same, the first one makes it.
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def have(
        self,
        mounts: Sequence[DatasetMount],
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Have these here, unless it `is_stopped`: that is asked before each part.
        LaunchError, or BucketError.
        """
        for mount in mounts:
            async with self._locks[mount.digest]:
                with suppress(_StoppedError):
                    await in_background(self._have, mount, is_stopped)

    def variables(self, mounts: Sequence[DatasetMount]) -> dict[str, str]:
        """Where the program finds them."""
        return {
            mount.variable: str(self._cache.folder(mount.digest)) for mount in mounts
        }

    def _have(self, mount: DatasetMount, is_stopped: Callable[[], bool]) -> None:
        def read(kind: ContentKind, mount: DatasetMount, digest: str) -> bytes:
            if is_stopped():
                raise _StoppedError
            return self._read(kind, mount, digest)

        try:
            have_copy(self._cache, mount, read)
        except (DatasetMissingError, InvalidInputError) as error:
            message = f"{mount.variable}: {error}"
            raise LaunchError(Reason.DATASET_MISSING, message) from None
        except BucketError:
            raise
        except OSError as error:
            message = f"{mount.variable}: {error}"
            raise LaunchError(Reason.DATASET_UNAVAILABLE, message) from None


def dataset_cache(
    home: Home,
    settings: NodeSettings,
    node: str,
    in_use: Callable[[], Mapping[str, bool]],
) -> DatasetCache:
    """That of a node: in the home, or, where jobs have accounts, which may not enter
    it, in a folder that all may pass through.
    """
    root = home.node / "datasets"
    if settings.has_accounts:
        root = settings.accounts_folder / f"{node}-datasets"
    return DatasetCache(root, int(settings.dataset_cache_gb * 1e9), in_use)
