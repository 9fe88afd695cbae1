"""`logs/audit.log`: who was admitted and who was not, and who changed what; a line of
JSON each.

A client that is admitted, or refused, again and again has a line at first, and then one
for each interval that says how often. No line holds a token or a body.
"""

import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import structlog

from gpuyard.config.server import ServerSettings
from gpuyard.controller.users import Identity
from gpuyard.domain.audit import AuditEvent
from gpuyard.domain.users import TOKEN_PREFIX
from gpuyard.server.callers import CallerKey, Peer

_ADMITTED_S = 300.0
_REFUSED_S = 60.0
# So many clients are counted at a time; then all counts are written.
_CLIENTS = 1024
_LONGEST = 200
# Whoever gives a token where its id belongs has it in the path of a request.
_OF_USERS = re.compile(f"{TOKEN_PREFIX}[A-Za-z0-9_-]{{16,}}")
log = structlog.get_logger(__name__)


_CountKey = tuple[AuditEvent, CallerKey, "_Who", str]


class _Who(NamedTuple):
    """The user who sends a request, and the user for whom it counts, if that is another
    one. None: the owner of the instance, or nobody.
    """

    user: str | None = None
    acts_for: str | None = None


def _who(identity: Identity | None) -> _Who:
    if identity is None:
        return _Who()
    if identity.sender:
        return _Who(identity.sender.user, identity.user)
    return _Who(identity.user)


@dataclass(slots=True)
class _Count:
    """What one client did in an interval, besides what has a line already."""

    caller: Peer
    who: _Who
    what: str
    outcome: str
    since: float
    count: int = 0


class AuditLog:
    """Writes the file at `path`; when it is full, it becomes `path.1`, and so on.
    What `secret` returns never gets into it.
    """

    def __init__(
        self,
        path: Path,
        settings: ServerSettings,
        secret: Callable[[], str],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._settings = settings
        self._secret = secret
        self._clock = clock
        self._counts: dict[_CountKey, _Count] = {}
        self._failing = False

    def admitted(
        self, caller: Peer, by: str = "token", identity: Identity | None = None
    ) -> None:
        """A client showed a token, or that of a `worker`, or came by the `socket` of
        its group. `identity`: who was signed in, here and in what follows.
        """
        self._count(AuditEvent.ADMITTED, caller, _who(identity), "", by)

    def refused(
        self, caller: Peer, what: str, why: str, identity: Identity | None = None
    ) -> None:
        """A request was refused at the edge: `why` is the code of the error."""
        self._count(AuditEvent.REFUSED, caller, _who(identity), what, why)

    def act(
        self, caller: Peer, what: str, outcome: str, identity: Identity | None = None
    ) -> None:
        """A client changed something, or was not allowed to."""
        act = _Count(caller, _who(identity), what, outcome, self._clock())
        self._write(AuditEvent.ACT, act, 1)

    def flush(self, *, all_of_it: bool = False) -> None:
        """Write the counts whose interval is over."""
        now = self._clock()
        for key, counted in list(self._counts.items()):
            interval = _ADMITTED_S if key[0] is AuditEvent.ADMITTED else _REFUSED_S
            if all_of_it or now - counted.since >= interval:
                del self._counts[key]
                if counted.count:
                    self._write(key[0], counted, counted.count)

    def _count(
        self,
        event: AuditEvent,
        caller: Peer,
        who: _Who,
        what: str,
        why: str,
    ) -> None:
        key = (event, caller.key, who, why)
        counted = self._counts.get(key)
        if counted is not None:
            counted.count += 1
            return
        if len(self._counts) >= _CLIENTS:
            self.flush(all_of_it=True)
        first = _Count(caller, who, what, why, self._clock())
        self._counts[key] = first
        self._write(event, first, 1)

    def _write(self, event: AuditEvent, entry: _Count, count: int) -> None:
        line = {
            "at": self._clock(),
            "since": entry.since,
            "event": event,
            "who": entry.who.user or entry.caller.user,
            "for": entry.who.acts_for,
            "from": entry.caller.address,
            "what": self._clean(entry.what),
            "outcome": entry.outcome,
            "count": count,
        }
        self._append(json.dumps(line).encode() + b"\n")

    def _clean(self, text: str) -> str:
        return _OF_USERS.sub("***", text.replace(self._secret(), "***"))[:_LONGEST]

    def _append(self, line: bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            file = os.open(self._path, flags, 0o600)
            try:
                os.write(file, line)
                size = os.fstat(file).st_size
            finally:
                os.close(file)
            if size >= self._settings.audit_mb * 1_000_000:
                self._rotate()
            self._failing = False
        except OSError as error:
            # A full disk must not stop the server. Once is enough to say so.
            if not self._failing:
                log.error("the audit log cannot be written", error=str(error))
            self._failing = True

    def _rotate(self) -> None:
        older = [self._path, *rotated(self._path, self._settings.audit_files)]
        for newer, target in reversed(list(pairwise(older))):
            if newer.exists():
                newer.replace(target)


def rotated(path: Path, files: int) -> list[Path]:
    """The older files of a log, the newest first."""
    return [path.with_name(f"{path.name}.{number}") for number in range(1, files + 1)]
