"""Watches: what the cluster holds of one kind, kept here and brought up to date as it changes.

A list says what there is, and a watch from the list's version what changes after it. Where the version is too old by
now (410), the list is read anew; what went meanwhile is found by its absence.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import structlog

from gpuyard.domain.errors import ProviderError
from gpuyard.providers.kubernetes.api import Api, ApiError, TooOldError
from gpuyard.providers.kubernetes.fields import Json, name_of, table, text

# A watch is begun anew so often: a connection that died silently is noticed then.
_WATCH_S = 60
log = structlog.get_logger(__name__)
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 15.0


class Watch:
    """The objects at `path` that match, by name. `gone(object)` is told of each that went, `seen(object)` of each that
    comes or changes."""

    def __init__(
        self, api: Api, path: str, selector: str, gone: Callable[[Json], None],
        seen: Callable[[Json], None] = lambda _: None,
    ) -> None:  # fmt: skip
        self._api, self._path, self._query = api, path, {"labelSelector": selector} if selector else {}
        self._seen, self._gone = seen, gone
        self._task: asyncio.Task[None] | None = None
        self._since = ""
        self._answered = asyncio.Event()
        self.objects: dict[str, Json] = {}
        self.problem: ProviderError | None = None

    async def ready(self) -> None:
        """Wait for the first list; the ProviderError that keeps it from being read, or that has broken the watch."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name=f"watch-{self._path}")
        await self._answered.wait()
        if self.problem is not None:
            raise self.problem

    async def close(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                if not self._since:
                    await self._list()
                await self._follow()
                pause_s = _FIRST_PAUSE_S
            except TooOldError:
                self._since = ""
            except Exception as error:
                if not isinstance(error, ProviderError):
                    log.exception("a watch failed, will try again", path=self._path)
                    error = self._api.away(f"its answer makes no sense: {type(error).__name__}")
                self.problem, self._since = error, ""
                self._answered.set()
                wait_s = error.retry_after_s if isinstance(error, ApiError) else 0.0
                await asyncio.sleep(max(pause_s, wait_s))
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _list(self) -> None:
        items, self._since = await self._api.items(self._path, **self._query)
        before, self.objects = self.objects, {}
        for item in items:
            self._keep(item)
        for name, item in before.items():
            if name not in self.objects:
                self._gone(item)
        self.problem = None
        self._answered.set()

    async def _follow(self) -> None:
        async for event in self._api.watch(self._path, self._since, _WATCH_S, **self._query):
            item = table(event, "object")
            self._since = text(item, "metadata", "resourceVersion") or self._since
            if event.get("type") in ("ADDED", "MODIFIED"):
                self._keep(item)
            elif event.get("type") == "DELETED":
                self.objects.pop(name_of(item), None)
                self._gone(item)

    def _keep(self, item: Json) -> None:
        self.objects[name_of(item)] = item
        self._seen(item)
