"""The datasets of attempts, on their node: made from the chunks that the server has
stored, in its store or over connections to it.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence

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

# So soon an attempt that was stopped waits no longer.
_LOOK_S = 0.2


class _StoppedError(Exception):
    """No attempt that wanted the copy needs it any more."""


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


class _Making:
    """A copy that is being made. `waiting`: of each attempt that waits for it, whether
    it has been stopped.
    """

    def __init__(self) -> None:
        self.waiting: list[Callable[[], bool]] = []
        self.task: asyncio.Task[None] | None = None

    def is_unwanted(self) -> bool:
        """Whether nobody waits for it any more. Threads may ask."""
        return all(is_stopped() for is_stopped in list(self.waiting))

    async def wait(self, is_stopped: Callable[[], bool]) -> bool:
        """Wait until it has ended, or its attempt `is_stopped`; whether it is made.
        LaunchError, or BucketError.
        """
        assert self.task
        self.waiting.append(is_stopped)
        try:
            while not self.task.done() and not is_stopped():
                await asyncio.wait([self.task], timeout=_LOOK_S)
        finally:
            self.waiting.remove(is_stopped)
        if not self.task.done():
            return False
        try:
            self.task.result()
        except _StoppedError:
            return False
        return True


class NodeDatasets:
    """Has the datasets of attempts in `cache`."""

    def __init__(self, cache: DatasetCache, read: ReadPart) -> None:
        self._cache = cache
        self._read = read
        # Attempts with the same dataset share it.
        self._making: dict[str, _Making] = {}

    async def have(
        self,
        mounts: Sequence[DatasetMount],
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Have these here, or return soon after it `is_stopped`. What is being copied
        then stops at its next part, unless another attempt waits for it. LaunchError,
        or BucketError.
        """
        for mount in mounts:
            is_made = False
            # What all others have given up begins again.
            while not is_made and not is_stopped():
                making = self._making.get(mount.digest) or self._begin(mount)
                is_made = await making.wait(is_stopped)

    def _begin(self, mount: DatasetMount) -> _Making:
        making = _Making()

        def forget(task: asyncio.Task[None]) -> None:
            del self._making[mount.digest]
            if not task.cancelled():
                task.exception()  # perhaps nobody waits for it any more

        work = in_background(self._have, mount, making.is_unwanted)
        making.task = asyncio.create_task(work)
        making.task.add_done_callback(forget)
        self._making[mount.digest] = making
        return making

    def variables(self, mounts: Sequence[DatasetMount]) -> dict[str, str]:
        """Where the program finds them."""
        return {
            mount.variable: str(self._cache.folder(mount.digest)) for mount in mounts
        }

    def _have(self, mount: DatasetMount, is_unwanted: Callable[[], bool]) -> None:
        def read(kind: ContentKind, mount: DatasetMount, digest: str) -> bytes:
            if is_unwanted():
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
