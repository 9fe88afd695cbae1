"""Cookies and codes that open nothing any more, before their time is over.

They are in a note of the ledger, so they stay ended when a server starts again, or
another one leads.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

_NOTE = "ended_cookies"
# So old what is known of the note may be.
_KNOWN_FOR_S = 2.0
_MOST = 4096


class EndedCookies:
    """`note(name)` gives a note of the ledger, empty if there is none; `keep(name,
    body)` returns when one is committed.
    """

    def __init__(
        self,
        note: Callable[[str], Mapping[str, Any]],
        keep: Callable[[str, Mapping[str, Any]], Awaitable[None]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._note = note
        self._keep = keep
        self._clock = clock
        # When their time is over, by name.
        self._ends_at: dict[str, float] = {}
        self._read_at: float | None = None

    def __contains__(self, name: str) -> bool:
        now = time.monotonic()
        if self._read_at is None or now - self._read_at >= _KNOWN_FOR_S:
            self._read()
            self._read_at = now
        return name in self._ends_at

    async def add(self, name: str, ends_at: float) -> None:
        """End one, whose time is over at `ends_at` (UTC seconds); from now on, before
        this is committed, it is among them.
        """
        self._ends_at[name] = ends_at
        self._read()
        await self._keep(_NOTE, self._ends_at)

    def _read(self) -> None:
        """Learn what other servers have ended, and forget whose time is over."""
        known = {**self._note(_NOTE), **self._ends_at}
        now = self._clock()
        live = [(ends_at, name) for name, ends_at in known.items() if ends_at > now]
        self._ends_at = {name: ends_at for ends_at, name in sorted(live)[-_MOST:]}
