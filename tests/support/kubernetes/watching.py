"""Lists and watches."""

import asyncio
import base64
import json
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from tests.support.kubernetes import errors
from tests.support.kubernetes.kinds import Kind
from tests.support.kubernetes.objects import Object, namespace
from tests.support.kubernetes.options import Options
from tests.support.kubernetes.request import Target
from tests.support.kubernetes.selectors import Test, by_fields, by_labels
from tests.support.kubernetes.store import Change, Store

Query = dict[str, str]


@dataclass
class Reader:
    """Answers lists and watches from the store."""

    store: Store
    options: Options
    _pages: dict[str, tuple[int, list[Object]]] = field(
        default_factory=dict[str, tuple[int, list[Object]]]
    )

    def page(self, target: Target, query: Query) -> Object:
        """A page of a list, or all of it; 400, 410."""
        kind = target.kind
        if query.get("continue"):
            version, items = self._rest(query["continue"])
        else:
            test = _test(kind, query)
            version = self.store.version
            items = [
                each for each in self.store.all(kind.plural, target.space) if test(each)
            ]
        limit = int(query.get("limit") or 0)
        page, rest = (items[:limit], items[limit:]) if limit else (items, [])
        meta: Object = {"resourceVersion": str(version)}
        if rest:
            meta |= {
                "continue": self._keep(version, rest),
                "remainingItemCount": len(rest),
            }
            if query.get("labelSelector") or query.get("fieldSelector"):
                del meta["remainingItemCount"]
        return {
            "kind": f"{kind.kind}List",
            "apiVersion": kind.api_version,
            "metadata": meta,
            "items": page,
        }

    def _keep(self, version: int, rest: list[Object]) -> str:
        token = base64.urlsafe_b64encode(
            json.dumps({"v": version, "k": secrets.token_hex(8)}).encode()
        ).decode()
        self._pages[token] = (version, rest)
        return token

    def _rest(self, token: str) -> tuple[int, list[Object]]:
        if token not in self._pages:
            raise errors.bad_request(
                "continue key is not valid: invalid continue token"
            )
        version, rest = self._pages[token]
        if version < self.store.forgotten:
            raise errors.expired(
                "The provided continue parameter is too old to display a consistent"
                " list result. You can start a new list without the continue parameter."
            )
        return version, rest

    def watch(self, target: Target, query: Query) -> AsyncIterator[bytes]:
        """The lines of a watch; 400, 410, 504 before there is one."""
        kind = target.kind
        text = query.get("resourceVersion") or ""
        selectors = f"metadata.name={target.name}" if target.name else ""
        merged = {
            **query,
            "fieldSelector": ",".join(
                filter(None, (selectors, query.get("fieldSelector")))
            ),
        }
        test = _test(kind, merged)
        if not text.isdigit() and text:
            raise errors.bad_request(f"invalid resource version: {text}")
        since = int(text or 0)
        if since > self.store.version:
            raise errors.ApiError(
                504,
                "Timeout",
                f"Timeout: Too large resource version: {since}, current: "
                f"{self.store.version}",
                {
                    "causes": [
                        {
                            "reason": "ResourceVersionTooLarge",
                            "message": "Too large resource version",
                        }
                    ],
                    "retryAfterSeconds": 1,
                },
            )
        if since and since < self.store.forgotten:
            refusal = errors.expired(
                f"too old resource version: {since} ({self.store.forgotten})"
            )
            if self.options.gone_as_http:
                raise refusal
            return _refused(refusal)
        # At once: what changes before the answer begins belongs to the watch, too.
        begin = since or self.store.version
        queue = self.store.listen(kind.plural, begin)
        present = () if since else self.store.all(kind.plural, target.space)
        first = [_line("ADDED", obj) for obj in present if test(obj)]
        selected = Selected(kind, target.space, test)
        return self._stream(selected, queue, begin, first, query)

    async def _stream(
        self,
        selected: "Selected",
        queue: asyncio.Queue[Change | None],
        version: int,
        first: list[bytes],
        query: Query,
    ) -> AsyncIterator[bytes]:
        limit = float(query.get("timeoutSeconds") or 0) or 1800.0
        end = time.monotonic() + limit
        bookmarks = query.get("allowWatchBookmarks") in ("true", "True", "1")
        kind = selected.kind
        try:
            for line in first:
                yield line
            while (left := end - time.monotonic()) > 0:
                try:
                    change = await asyncio.wait_for(
                        queue.get(), min(left, self.options.bookmark_s)
                    )
                except TimeoutError:
                    if bookmarks and queue.empty():
                        version = self.store.version
                        yield _bookmark(kind, version)
                    continue
                if change is None:
                    return
                version = max(version, change.version)
                line = selected.line_of(change)
                if line:
                    yield line
            if bookmarks:
                yield _bookmark(kind, version)
        finally:
            self.store.stop_listening(queue)


@dataclass(frozen=True)
class Selected:
    """Which objects a watch shows."""

    kind: Kind
    space: str | None
    test: Test

    def line_of(self, change: Change) -> bytes:
        """The line about a change; empty when it shows none of these objects."""
        if change.plural != self.kind.plural:
            return b""
        if self.space is not None and namespace(change.obj) != self.space:
            return b""
        return _shown(change, self.test)


def _test(kind: Kind, query: Query) -> Test:
    by_label = by_labels(query.get("labelSelector") or "")
    by_field = by_fields(kind, query.get("fieldSelector") or "")
    return lambda obj: by_label(obj) and by_field(obj)


def _shown(change: Change, test: Test) -> bytes:
    """What leaves a selection looks deleted, what enters it added."""
    if change.kind == "DELETED":
        return (
            _line("DELETED", change.obj)
            if test(change.obj) or (change.old and test(change.old))
            else b""
        )
    now = test(change.obj)
    before = change.old is not None and test(change.old)
    if now:
        return _line("MODIFIED" if before else "ADDED", change.obj)
    return _line("DELETED", change.obj) if before else b""


def _line(kind: str, obj: Object) -> bytes:
    return json.dumps({"type": kind, "object": obj}).encode() + b"\n"


def _bookmark(kind: Kind, version: int) -> bytes:
    meta = {"resourceVersion": str(version), "creationTimestamp": None}
    return _line(
        "BOOKMARK",
        {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": meta},
    )


async def _refused(error: errors.ApiError) -> AsyncIterator[bytes]:
    yield _line("ERROR", error.status)
