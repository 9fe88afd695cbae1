"""Who may open what a job serves: a link signs a browser in, once, for one port of one
job. Nothing is stored: a server that has started again asks for new links.
"""

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from gpuyard.config.proof import digest_of
from gpuyard.server.tools.places import ToolPlace

LINK_LASTS_S = 60.0
"""How long a link is good, in seconds."""
MOST_OF_ONE = 200
"""So many links, and so many sessions, may be of one person."""
_MOST = 10_000


@dataclass(frozen=True, slots=True)
class ToolSession:
    """A place, who was admitted to it (None: the owner of the instance), and whether
    that person would be admitted now. `ends_at` is of `clock`.
    """

    place: ToolPlace
    person: str | None
    admits: Callable[[], bool]
    ends_at: float
    clock: Callable[[], float]

    def is_good(self) -> bool:
        """Whether it goes on."""
        return self.clock() < self.ends_at and self.admits()


class ToolSessions:
    """Those of one server. The oldest make room, and those of one person for others of
    the same person; keys are known by their digests.
    """

    def __init__(
        self, lasts_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._lasts_s = lasts_s
        self._clock = clock
        self._codes: OrderedDict[str, ToolSession] = OrderedDict()
        self._open: OrderedDict[str, ToolSession] = OrderedDict()

    def code(
        self, place: ToolPlace, admits: Callable[[], bool], person: str | None = None
    ) -> str:
        """What a link for a person has to say: once, and soon. None: the owner of the
        instance.
        """
        ends_at = self._clock() + LINK_LASTS_S
        session = ToolSession(place, person, admits, ends_at, self._clock)
        return _keep(self._codes, session)

    def redeem(self, code: str, place: ToolPlace) -> str | None:
        """The value of a cookie for a code, which is used up; None if it opens
        nothing there.
        """
        found = self._find(self._codes, code, place)
        if found is None:
            return None
        del self._codes[digest_of(code)]
        ends_at = self._clock() + self._lasts_s
        session = ToolSession(place, found.person, found.admits, ends_at, self._clock)
        return _keep(self._open, session)

    def find(self, cookie: str | None, place: ToolPlace) -> ToolSession | None:
        """The session of a browser; None if it has none at this place any more."""
        return self._find(self._open, cookie or "", place)

    def _find(
        self, kept: OrderedDict[str, ToolSession], key: str, place: ToolPlace
    ) -> ToolSession | None:
        found = kept.get(digest_of(key))
        if found is None or found.place != place:
            return None
        if not found.is_good():
            del kept[digest_of(key)]
            return None
        return found


def _keep(kept: OrderedDict[str, ToolSession], session: ToolSession) -> str:
    key = secrets.token_urlsafe(32)
    own = [name for name, one in kept.items() if one.person == session.person]
    if len(own) >= MOST_OF_ONE:
        del kept[own[0]]
    kept[digest_of(key)] = session
    while len(kept) > _MOST:
        kept.popitem(last=False)
    return key
