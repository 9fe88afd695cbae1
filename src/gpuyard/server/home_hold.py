"""What only one server of a home has: its lock, its addresses and its ledger."""

import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import structlog

from gpuyard.config.database import find_database
from gpuyard.config.paths import Home
from gpuyard.config.settings import Settings
from gpuyard.config.sockets import listening_socket
from gpuyard.domain.errors import InvalidInputError, LedgerUnreachableError
from gpuyard.ledger.ledger import Ledger
from gpuyard.ledger.reserve import Reserve
from gpuyard.ledger.store import lock_ledger
from gpuyard.server.backups import sweep_downloads
from gpuyard.server.listening import BACKLOG, listen
from gpuyard.server.taking_over import take_over

_DATABASE_AGAIN_S = 1.0
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class HomeHold:
    """The hold of a server on its home. `listener`: the socket where everybody reaches
    it; `own`: the one for this host.
    """

    lock: IO[str]
    listener: socket.socket
    own: socket.socket
    ledger: Ledger

    @classmethod
    def inherited(
        cls, descriptors: Sequence[int], home: Home, settings: Settings
    ) -> "HomeHold":
        """What the process had that has started over as this one."""
        lock, listener, own = descriptors
        return cls(
            os.fdopen(lock, "a+"),
            socket.socket(fileno=listener),
            socket.socket(fileno=own),
            _open_patiently(home, settings),
        )

    @classmethod
    def taken(
        cls, home: Home, settings: Settings, *, takes_over: bool, again: bool
    ) -> "HomeHold | None":
        """What nobody has now; None if a server shall follow `again` one that was
        given up.
        """
        lock = take_over(home) if takes_over else lock_ledger(home.lock)
        if again and not home.server.exists():
            log.info("leaving: the server before was given up")
            lock.close()
            return None
        sweep_downloads(home)
        return cls(
            lock,
            listen(settings, home.server),
            listening_socket(home.server_socket, BACKLOG),
            _open_ledger(home, settings),
        )

    @property
    def descriptors(self) -> list[int]:
        """For `inherited`."""
        return [self.lock.fileno(), self.listener.fileno(), self.own.fileno()]


def _open_ledger(home: Home, settings: Settings) -> Ledger:
    """The ledger; a file in the home has the reserve to rely on."""
    where = find_database(home, settings.ledger.url)
    if not isinstance(where, Path):
        if settings.shared.socket:
            raise InvalidInputError.of(
                "shared.socket",
                "needs a ledger in a file: other servers of one PostgreSQL would not"
                " know who its members are",
                "remove [shared], or `url` of [ledger]",
            )
        return Ledger.open(where)
    size = int(settings.disk.reserve_mb * 1_000_000)
    return Ledger.open(where, Reserve(home.reserve, size))


def _open_patiently(home: Home, settings: Settings) -> Ledger:
    """The ledger of a server that has started over; its database may be away for a
    while. Who calls meanwhile waits.
    """
    while True:
        try:
            return _open_ledger(home, settings)
        except LedgerUnreachableError as error:
            log.warning("waiting for the database", error=str(error))
            time.sleep(_DATABASE_AGAIN_S)
