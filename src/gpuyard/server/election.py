"""Taking the lease, and holding it, in a thread of its own: an event loop that is
busy loses nothing by it.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import structlog

from gpuyard.domain.errors import InvalidInputError, LedgerError
from gpuyard.ledger.lease import Lease, LeaseStatus, Member, Term

_EVERY_S = 1.0
# A leader stops this long before its lease runs out, so that there is no moment with
# two.
_MARGIN_S = 0.5
# The lease of a server whose event loop hangs is not renewed: another one shall lead.
_HANGS_S = 30.0
# A server that has not been seen for longer may have moved to this host.
_RECENT_S = 60.0
log = structlog.get_logger(__name__)


def refuse_loopback(me: Member, others: Sequence[Member]) -> None:
    """InvalidInputError when `others` could not reach this server: they are on other
    hosts, and would dial their own.
    """
    known = [other for other in others if other.loopback]
    elsewhere = [other for other in known if not other.reaches(me)]
    if elsewhere:
        raise InvalidInputError.of(
            "server.url",
            f"is {me.url}, which the server at {elsewhere[0].url} on another host"
            " reads as itself",
            "set [server] url to an address of this host that the others can reach",
        )


class Election:
    """Who leads. The callbacks are called on the event loop.

    `on_won(epoch)`: this server leads from now on. `on_lost(why)`: it must not go on.
    `on_seen()`: the roll was read.
    """

    def __init__(self, lease: Lease, me: Member) -> None:
        self.me = me
        self.lease_status = LeaseStatus(None, -1.0, (me,), (me,))
        self.on_won: Callable[[int], None] = lambda _: None
        self.on_lost: Callable[[str], None] = lambda _: None
        self.on_seen: Callable[[], None] = lambda: None
        self._lease = lease
        self._term: Term | None = None
        self._over = threading.Event()
        self._read = asyncio.Event()
        self._loop_seen_at = time.monotonic()
        # Held while the roll is read: what one thread reads of it must not replace what
        # another one has read later.
        self._roll = threading.Lock()

    @property
    def leader(self) -> Member | None:
        """The server that leads, as far as is known."""
        if self._term:
            return self.me
        return self.lease_status.leader if self.lease_status.left_s > 0 else None

    def start(self) -> None:
        """Look once, so that who leads is known (LedgerError), and then every second.

        Needs a running loop.
        """
        self._loop = asyncio.get_running_loop()
        self._look()
        self._thread = threading.Thread(target=self._run, name="election", daemon=True)
        self._thread.start()
        self._show_life()

    async def close(self) -> None:
        """Stand no more, and let the next one lead at once."""
        self._over.set()
        await asyncio.to_thread(self._thread.join)
        term = self._term
        self._term = None
        if term:
            try:
                await asyncio.to_thread(self._lease.release, term)
            except LedgerError as error:
                log.warning("the lease was not given back", error=str(error))

    def refuse_loopback(self) -> None:
        """InvalidInputError when servers on other hosts share the ledger and would
        read this one's URL as their own; LedgerError.
        """
        refuse_loopback(self.me, self._lease.seen_within(_RECENT_S))

    async def show_token(self, sha256: str) -> None:
        """Let the roll name another digest of this server's token, from now on. The
        others know it when they next read the roll. LedgerError: it names the former.
        """
        await asyncio.to_thread(self._show_token, sha256)

    async def read_anew(self) -> None:
        """Wait until the roll has been read once more: a server that has just come
        stands on it then.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(2 * _EVERY_S):
                await self._read.wait()

    # --- in the thread ---

    def _show_token(self, sha256: str) -> None:
        me = replace(self.me, token_sha256=sha256)
        with self._roll:
            self.lease_status = self._lease.introduce(me)
            self.me = me

    def _run(self) -> None:
        failing = False
        while not self._over.wait(self._pause()):
            try:
                self._look()
                failing = False
            except LedgerError as error:
                if not failing:
                    log.warning("the lease cannot be seen", error=str(error))
                failing = True

    def _pause(self) -> float:
        """Until the next look; no longer than the lease that somebody else holds."""
        left_s = self.lease_status.left_s
        return _EVERY_S if self._term or left_s < 0 else min(_EVERY_S, left_s + 0.05)

    def _look(self) -> None:
        if self._term:
            if time.monotonic() - self._loop_seen_at > _HANGS_S:
                log.error("the event loop hangs: the lease is left to run out")
                return
            renewed = self._lease.renew(self._term)
            if renewed is None:
                self._loop.call_soon_threadsafe(
                    self.on_lost, "another server has taken the lease"
                )
                return
            self._term = renewed
        with self._roll:
            self.lease_status = self._lease.refresh()
        self._loop.call_soon_threadsafe(self._was_read)
        if self._term is None and (
            self.lease_status.left_s < 0 or self.lease_status.leader == self.me
        ):
            self._stand()

    def _stand(self) -> None:
        self._term = self._lease.acquire()
        if self._term:
            log.info("this server leads", epoch=self._term.epoch)
            self._loop.call_soon_threadsafe(self.on_won, self._term.epoch)
            self._loop.call_soon_threadsafe(self._watch)

    # --- on the loop ---

    def _was_read(self) -> None:
        read = self._read
        self._read = asyncio.Event()
        read.set()
        self.on_seen()

    def _show_life(self) -> None:
        self._loop_seen_at = time.monotonic()
        self._loop.call_later(_EVERY_S, self._show_life)

    def _watch(self) -> None:
        """Stop leading before the lease runs out, by this process's own clock, if it
        could not be renewed.
        """
        if self._term is None:
            return
        left_s = self._term.ends_at - _MARGIN_S - time.monotonic()
        if left_s > 0:
            self._loop.call_later(left_s, self._watch)
        else:
            self.on_lost("the lease could not be renewed in time")
