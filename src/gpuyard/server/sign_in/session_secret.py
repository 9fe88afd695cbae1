"""The secret with which the servers of an instance seal cookies: any of them opens what
another one has sealed, also when that one is gone.

It is a note of the ledger. Who reads the ledger cannot sign in with it: a cookie holds
a token, and no ledger does.
"""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

_NOTE = "session_secret"
_BYTES = 32
# So often the ledger is asked whether there is one by now.
_ASK_EVERY_S = 1.0


class SessionSecret:
    """`note(name)` gives a note of the ledger, empty if there is none; `keep(name,
    body)` returns when one is committed.
    """

    def __init__(
        self,
        note: Callable[[str], Mapping[str, Any]],
        keep: Callable[[str, Mapping[str, Any]], Awaitable[None]],
    ) -> None:
        self._note = note
        self._keep = keep
        self._found: str | None = None
        self._asked_at = float("-inf")
        self._making = asyncio.Lock()

    def known(self) -> str | None:
        """The secret; None if no server has sealed anything yet."""
        now = time.monotonic()
        if self._found is None and now - self._asked_at >= _ASK_EVERY_S:
            self._asked_at = now
            self._found = self._note(_NOTE).get("secret")
        return self._found

    async def get(self) -> str:
        """The secret, which is made if there is none; only the leader can."""
        async with self._making:
            found = self._note(_NOTE).get("secret") if not self._found else self._found
            if found is None:
                found = secrets.token_hex(_BYTES)
                await self._keep(_NOTE, {"secret": found})
            self._found = found
            return found
