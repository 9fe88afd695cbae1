"""How long attempts in external queues ran, by what this server saw of them.

An external queue tells the times of its own wall clock, which somebody may set, and
so may somebody set ours. But an attempt that waited when the server asked began later,
and one that ran at two polls ran at least so long as lies between them. Between these
bounds, which are measured by the boot clock, the queue's times count. Beyond them, a
clock was set, and the bound counts.
"""

import json
import math
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpuyard.config.boot_clock import boot_clock_s, boot_id


@dataclass(slots=True)
class _Seen:
    """What was seen of an attempt; times in seconds of the boot clock.

    `waited_at`: when it did not run yet, at last. `began_at`: when it probably began.
    `ran_from`, `ran_until`: when it was seen running, first and last.
    """

    waited_at: float = -math.inf
    began_at: float | None = None
    ran_from: float | None = None
    ran_until: float | None = None


class ObservedRuns:
    """Keeps what was seen of each live attempt, also in a file, for the next server of
    this home. The files are valid until the host boots, so they need no sync.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = boot_clock_s) -> None:
        self._folder = folder
        self._clock = clock
        self._runs: dict[str, _Seen] = {}
        # Attempts that have a file.
        self._kept: set[str] = set()

    def restore(self, attempt_ids: Collection[str]) -> None:
        """Read what an earlier server saw of these attempts; drop all others."""
        for path in self._folder.glob("*.json"):
            run = _read(path) if path.stem in attempt_ids else None
            if run is None:
                with suppress(OSError):  # no server is kept from starting by it
                    path.unlink()
            else:
                self._runs[path.stem] = run
                self._kept.add(path.stem)

    def now(self) -> float:
        """The boot clock, in seconds."""
        return self._clock()

    def submits(self, attempt_id: str) -> None:
        """Note that the attempt is being submitted. When that is repeated, it may run
        already, so only the first time counts.
        """
        if attempt_id not in self._runs:
            self._runs[attempt_id] = _Seen(self._clock())
            self._kept.add(attempt_id)
            self._write(attempt_id)

    def waits(self, attempt_id: str, asked_at: float) -> None:
        """The queue, asked at this time, said that the attempt does not run yet."""
        before = self._runs.get(attempt_id, _Seen())
        self._runs[attempt_id] = _Seen(asked_at)
        if before.ran_from is not None:
            # The queue took it off its place: that run is over.
            self._write(attempt_id)

    def runs(self, attempt_id: str, told_s: float, asked_at: float) -> float:
        """The queue, asked at this time, said that the attempt runs, and by its times
        has run for `told_s`. Returns for how many seconds it has run.
        """
        run = self._runs.setdefault(attempt_id, _Seen())
        now = self._clock()
        # It may have ended since, while the queue told of others.
        run.ran_until = asked_at
        if run.ran_from is None or run.began_at is None:
            run.ran_from = now
            run.began_at = max(now - max(told_s, 0.0), run.waited_at)
            self._write(attempt_id)
        return now - run.began_at

    def ran_s(self, attempt_id: str) -> float | None:
        """For how many seconds the attempt has run; None if it was not seen running."""
        run = self._runs.get(attempt_id, _Seen())
        return None if run.began_at is None else self._clock() - run.began_at

    def ended(self, attempt_id: str, told_s: float, answer_age_s: float) -> float:
        """For how many seconds the attempt ran that has ended; by the queue's times it
        was `told_s`. `answer_age_s`: how old the queue's answers may be.
        """
        run = self._runs.get(attempt_id, _Seen())
        at_least = 0.0
        if run.ran_from is not None and run.ran_until is not None:
            at_least = max(run.ran_until - run.ran_from, 0.0)
        at_most = self._clock() - run.waited_at
        if told_s > at_most + answer_age_s:
            return at_most
        if told_s <= 0 or told_s < at_least - answer_age_s:
            return at_least
        return told_s

    def forget(self, attempt_id: str) -> None:
        """The attempt has ended, and its end is recorded."""
        self._runs.pop(attempt_id, None)
        if attempt_id in self._kept:
            self._kept.discard(attempt_id)
            with suppress(OSError):
                self._path(attempt_id).unlink(missing_ok=True)

    def _path(self, attempt_id: str) -> Path:
        return self._folder / f"{attempt_id}.json"

    def _write(self, attempt_id: str) -> None:
        """Write what is known of the attempt, if it is to be kept. On a full disk it is
        in memory only.
        """
        if attempt_id not in self._kept:
            return
        kept = {"boot_id": boot_id(), **asdict(self._runs[attempt_id])}
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._path(attempt_id).write_text(json.dumps(kept))


def _read(path: Path) -> _Seen | None:
    """What a server wrote since this host was booted; None without that."""
    try:
        kept: dict[str, Any] = json.loads(path.read_bytes())
        if kept.pop("boot_id") != boot_id():
            return None
        return _Seen(**kept)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
