"""Follows the log of one pod to its end, whatever becomes of its connections.

A stream of a log may end or stall although the program goes on: the API server starts
again, a node is slow, a connection is dead. So only the end of the pod ends the log,
and it is read once more then, from the last line on. A kubelet that cannot read the log
says so in its place.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from typing import Any

from gpuyard.domain.errors import ProviderError
from gpuyard.providers.base import TRANSIENT
from gpuyard.providers.kubernetes.api import KubernetesApi
from gpuyard.providers.kubernetes.api_errors import ApiError
from gpuyard.providers.kubernetes.log_lines import TimedLines, TimedPosition
from gpuyard.providers.kubernetes.manifest import CONTAINER

# Between two looks at what the watch has: after the end of a stream, and meanwhile.
_CHECK_S = 0.1
_LOOK_S = 1.0
# The watch tells of the end of a pod so long after its output has ended, at most; and
# the output may come so long after the end.
_LAG_S = 2.0
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0
# A refusal counts after this time: an API server that has just started refuses rights
# that it has not read yet.
_FIRM_S = 10.0
# What a kubelet says of a log that it has removed.
_REMOVED = ("unable to retrieve container logs for", "no such file or directory")


class UnreadableLogError(ProviderError):
    """A kubelet cannot read a log; the message has its words."""


class PodLog:
    """The log of one pod.

    `path`: of the log. `whole`: give whole lines only. `is_over`: whether the pod has
    ended. `is_lost`: whether nobody will ever answer for it. `silence_s`: a stream that
    says nothing for so long is opened again.
    """

    def __init__(
        self,
        api: KubernetesApi,
        path: str,
        *,
        whole: bool,
        is_over: Callable[[], bool],
        is_lost: Callable[[], bool],
        silence_s: float,
        patience_s: float,
    ) -> None:
        self._api = api
        self._path = path
        self._whole = whole
        self._is_over = is_over
        self._is_lost = is_lost
        self._silence_s = silence_s
        self._patience_s = patience_s
        # What to ask for before a line has been read: at first, and again.
        self._tail: dict[str, Any] = {}
        self._later_tail: dict[str, Any] = {}

    async def follow(
        self, position: TimedPosition, lines: int | None = None
    ) -> AsyncIterator[bytes]:
        """The output behind `position`, or its last lines, until its end; `position`
        moves along.

        While the server does not answer, this waits; but not longer than `patience_s`
        once the pod has ended: then ProviderError.
        """
        self._set_tail(lines)
        trouble = _Trouble(self._patience_s)
        while True:
            is_over = self._is_over()
            is_news = False
            try:
                async for part in self._read(position, follow=not is_over):
                    is_news = True
                    yield part
                trouble.is_past()
            except ProviderError as error:
                if self._is_lost() or _is_gone(error, is_over=is_over):
                    return
                if is_news and not isinstance(error, UnreadableLogError):
                    trouble.is_past()
                await trouble.wait(error, is_over=is_over)
                continue
            if is_over and not is_news:
                return
            if not is_over:
                await self._until_over(_LAG_S)

    def _set_tail(self, lines: int | None) -> None:
        if lines is None:
            return
        self._tail = {"tailLines": lines}
        self._later_tail = dict(self._tail)
        if lines == 0:
            # If the first stream breaks at once, what came meanwhile is wanted, too.
            now = datetime.fromtimestamp(time.time() + self._api.ahead_s, UTC)
            self._later_tail = {"sinceTime": now.strftime("%Y-%m-%dT%H:%M:%SZ")}

    async def _read(
        self, position: TimedPosition, *, follow: bool
    ) -> AsyncIterator[bytes]:
        """What one stream gives that is new."""
        query: dict[str, Any] = {"container": CONTAINER, "timestamps": "true"}
        if follow:
            query["follow"] = "true"
        if since := position.since:
            query["sinceTime"] = since
        else:
            query |= self._tail
            self._tail = self._later_tail
        lines = TimedLines(position, whole=self._whole, tail=bool(self._later_tail))
        async with aclosing(self._api.stream(self._path, **query)) as parts:
            async for part in self._until_silent(parts):
                if new := lines.feed(part):
                    yield new
        lines.end()
        if lines.complaint:
            raise self._unreadable(lines.complaint)
        if not follow and (rest := lines.finish()):
            yield rest

    def _unreadable(self, complaint: str) -> UnreadableLogError:
        found = self._api.unreachable(f"the node cannot read the output: {complaint}")
        return UnreadableLogError(str(found), found.provider, found.error_code)

    async def _until_silent(self, parts: AsyncGenerator[bytes]) -> AsyncIterator[bytes]:
        """The parts of a stream, until it ends or is given up because it is silent."""
        coming = asyncio.ensure_future(anext(parts, None))
        heard_at = time.monotonic()
        try:
            while True:
                await asyncio.wait({coming}, timeout=min(_LOOK_S, self._silence_s))
                if coming.done():
                    part = coming.result()
                    if part is None:
                        return
                    heard_at = time.monotonic()
                    yield part
                    coming = asyncio.ensure_future(anext(parts, None))
                elif time.monotonic() - heard_at >= self._longest_silence_s():
                    return
        finally:
            coming.cancel()
            with suppress(asyncio.CancelledError, ProviderError):
                await coming

    def _longest_silence_s(self) -> float:
        return _LAG_S if self._is_over() else self._silence_s

    async def _until_over(self, wait_s: float) -> None:
        """Wait until the pod has ended, for so long at most."""
        began = time.monotonic()
        while not self._is_over():
            if time.monotonic() - began >= wait_s:
                return
            await asyncio.sleep(_CHECK_S)


class _Trouble:
    """How long a server has not answered, and how long to wait until the next try."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self.is_past()

    def is_past(self) -> None:
        """It has answered."""
        self._since: float | None = None
        self._pause_s = _FIRST_PAUSE_S

    async def wait(self, error: ProviderError, *, is_over: bool) -> None:
        """Wait before the next try, or raise the error: it will not pass."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        limits: list[float] = []
        if not _may_pass(error):
            limits.append(_FIRM_S)
        if is_over:
            limits.append(self._patience_s)
        if limits and now - self._since >= min(limits):
            raise error
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)


def _is_gone(error: ProviderError, *, is_over: bool) -> bool:
    """Whether there is nothing to read, now and later."""
    if isinstance(error, UnreadableLogError):
        return is_over and any(words in str(error) for words in _REMOVED)
    if not isinstance(error, ApiError):
        return False
    return error.is_not_found or (is_over and _has_not_begun(error))


def _has_not_begun(error: ProviderError) -> bool:
    """Whether the container has no output yet; it never will once its pod is over."""
    return isinstance(error, ApiError) and error.http == 400


def _may_pass(error: ProviderError) -> bool:
    """Whether it may be otherwise in a moment."""
    return _has_not_begun(error) or error.error_code in TRANSIENT
