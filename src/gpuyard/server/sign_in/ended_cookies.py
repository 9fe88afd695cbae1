"""Cookies and codes that open nothing any more, before their time is over.

They are in a note of the ledger, so they stay ended when a server starts again, or
another one leads. Each user has lists of a limited length, so that nobody can push out
what others have ended: where one is too long, all that would end before the last one
that is left out is over, too.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

_NOTE = "ended_cookies"
# So old what is known of the note may be.
_KNOWN_FOR_S = 2.0
_MOST_OF_ONE = 64


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
        # When their time is over, by name. The name of a list stands for all in it
        # whose time is over by then.
        self._ends_at: dict[str, float] = {}
        self._read_at: float | None = None

    def has(self, name: str, ends_at: float) -> bool:
        """Whether this one has ended, whose time is over at `ends_at` (UTC seconds)."""
        now = time.monotonic()
        if self._read_at is None or now - self._read_at >= _KNOWN_FOR_S:
            self._read()
            self._read_at = now
        all_until = self._ends_at.get(_list_of(name), float("-inf"))
        return name in self._ends_at or ends_at <= all_until

    async def add(self, name: str, ends_at: float) -> None:
        """End one; from now on, before this is committed, it is among them."""
        self._ends_at[name] = ends_at
        self._read()
        await self._keep(_NOTE, self._ends_at)

    def _read(self) -> None:
        """Learn what other servers have ended, and forget whose time is over."""
        now = self._clock()
        lists: dict[str, dict[str, float]] = {}
        for known in (self._note(_NOTE), self._ends_at):
            for name, ends_at in known.items():
                if ends_at > now:
                    ended = lists.setdefault(_list_of(name), {})
                    ended[name] = max(ends_at, ended.get(name, ends_at))
        self._ends_at = {}
        for name, ended in lists.items():
            self._ends_at |= _shortened(name, ended)


def name_of(user: str | None, purpose: str, number: str) -> str:
    """The name of what a user (None: the owner of the instance) has for a purpose."""
    return f"{user or ''}/{purpose}/{number}"


def _list_of(name: str) -> str:
    return name.rpartition("/")[0] + "/"


def _shortened(name: str, ended: Mapping[str, float]) -> dict[str, float]:
    """A list without those that end first if they are too many. The entry of the
    list itself then tells until when all is over.
    """
    if len(ended) <= _MOST_OF_ONE:
        return dict(ended)
    by_end = sorted(ended, key=lambda one: ended[one])
    last_left_out = by_end[-_MOST_OF_ONE - 1]
    kept = {one: ended[one] for one in by_end[-_MOST_OF_ONE:]}
    all_until = ended.get(name, float("-inf"))
    kept[name] = max(ended[last_left_out], all_until)
    return kept
