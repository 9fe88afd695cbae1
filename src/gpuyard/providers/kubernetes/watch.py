"""Keeps a current copy of the cluster's objects of one kind.

A list returns the objects, and a watch that begins at the list's version returns their
changes. When that version is too old (410), the list is read again. Objects that are
missing from the new list were deleted meanwhile. A watch that is silent for too long
begins again where it is.
"""

import asyncio
import math
import time
from collections.abc import Callable
from contextlib import suppress

import structlog

from gpuyard.domain.errors import ProviderError
from gpuyard.providers.kubernetes.api import KubernetesApi
from gpuyard.providers.kubernetes.api_errors import ApiError, TooOldError
from gpuyard.providers.kubernetes.fields import Json, name_of, object_at, text_at

log = structlog.get_logger(__name__)
# Pauses after errors.
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 15.0
# A watch that has just begun is not begun again: what it missed takes time to come.
_FRESH_S = 10.0
# A watch that has ended so soon, without a word, may do so again and again.
_SHORT_S = 0.9


class KubernetesWatch:
    """The objects at `path` with the labels of `selector`, by name.

    `on_change(object)` is called for each new or changed object, `on_delete(object)`
    for each deleted one.
    """

    def __init__(
        self,
        api: KubernetesApi,
        path: str,
        selector: str,
        on_delete: Callable[[Json], None],
        on_change: Callable[[Json], None] | None = None,
    ) -> None:
        self._api = api
        self._path = path
        self._query = {"labelSelector": selector} if selector else {}
        self._on_change = on_change
        self._on_delete = on_delete
        self._task: asyncio.Task[None] | None = None
        self._version = ""
        self._caught_up_at = -math.inf
        self._answered = asyncio.Event()
        self.objects: dict[str, Json] = {}
        self.problem: ProviderError | None = None

    async def ready(self) -> None:
        """Wait for the first list.

        Raises the ProviderError when the last list or watch failed.
        """
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name=f"watch-{self._path}")
        await self._answered.wait()
        if self.problem is not None:
            raise self.problem

    async def close(self) -> None:
        """Stop watching."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def catch_up(self) -> None:
        """Begin again where it is: what it should have told has not come, so its
        connection may be dead. Not again and again, for then nothing would ever come.
        """
        now = time.monotonic()
        if now - self._caught_up_at < _FRESH_S:
            return
        self._caught_up_at = now
        task = self._task
        self._task = None
        if task is not None:
            task.cancel()
        await self.ready()

    async def _run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            began = time.monotonic()
            wait_s = 0.0
            is_of_use = False
            try:
                if not self._version:
                    await self._list()
                is_of_use = await self._follow()
            except TooOldError:
                self._version = ""
            except Exception as error:  # noqa: BLE001  the next try may succeed
                self._note_problem(error)
                wait_s = error.retry_after_s if isinstance(error, ApiError) else 0.0
            lasted = time.monotonic() - began >= _SHORT_S
            if self.problem is None and (is_of_use or lasted):
                pause_s = _FIRST_PAUSE_S
                continue
            await asyncio.sleep(max(pause_s, wait_s))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _note_problem(self, error: Exception) -> None:
        if not isinstance(error, ProviderError):
            log.exception("a watch failed, will try again", path=self._path)
            error = self._api.unreachable(
                f"its answer makes no sense: {type(error).__name__}"
            )
        self.problem = error
        self._version = ""
        self._answered.set()

    async def _list(self) -> None:
        items, self._version = await self._api.list_objects(self._path, **self._query)
        old_objects = self.objects
        self.objects = {}
        for item in items:
            self._keep(item)
        for name, item in old_objects.items():
            if name not in self.objects:
                self._on_delete(item)
        self.problem = None
        self._answered.set()

    async def _follow(self) -> bool:
        """Keep the copy current until the watch ends; whether it said anything."""
        has_news = False
        async for event in self._api.watch(self._path, self._version, **self._query):
            has_news = True
            item = object_at(event, "object")
            version = text_at(item, "metadata", "resourceVersion")
            self._version = version or self._version
            if event.get("type") in ("ADDED", "MODIFIED"):
                self._keep(item)
            elif event.get("type") == "DELETED":
                self.objects.pop(name_of(item), None)
                self._on_delete(item)
        return has_news

    def _keep(self, item: Json) -> None:
        self.objects[name_of(item)] = item
        if self._on_change is not None:
            self._on_change(item)
