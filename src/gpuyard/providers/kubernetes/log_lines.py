"""Where a reader is in a pod's log, by the times of the lines that it has read.

Kubernetes cannot read a log from a byte on, and a rotated log begins at a later byte.
But it gives each line with the time at which it was written, to the nanosecond, and can
begin at a time, to the second.
"""

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

# At least so many times are kept: the lines of standard output and of standard error
# may be a little out of order.
_RECENT = 16
_LONGEST_TIME = 64
_TIME = re.compile(
    rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9})\d*)?(Z|[+-]\d\d:\d\d)"
)
_WHOLE = sys.maxsize
# What a kubelet writes into an answer that has begun, where a line would stand: it
# cannot read the log, or cannot wait for more of it.
_KUBELET_SAYS = (
    b"unable to retrieve container logs for ",
    b"failed to create fsnotify watcher",
    b"failed to open log file ",
    b"failed to try resolving symlinks in path ",
    b"failed to watch ",
)


@dataclass(slots=True)
class TimedPosition:
    """How far a log was read.

    A time is written as `SECONDS.NANOSECONDS`, in UTC, so that times are in order as
    text. `begin`: all older lines were read, or are not wanted; empty for none.
    `recent`: how many lines were read with each of the times from then on. `last`: the
    time of the line that was read last. `partial`: how many bytes of it were read, if
    its end was not; else 0.
    """

    begin: str = ""
    recent: dict[str, int] = field(default_factory=dict[str, int])
    last: str = ""
    partial: int = 0

    @property
    def since(self) -> str:
        """The time at which to begin to read again; empty for the start of the log."""
        if not self.begin:
            return ""
        second = int(self.begin.partition(".")[0])
        return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def copy(self) -> "TimedPosition":
        """The same position, which stays while this one moves."""
        return replace(self, recent=dict(self.recent))

    def note(self, time: str) -> None:
        """A line of this time is being read."""
        self.recent[time] = self.recent.get(time, 0) + 1
        self.last = time
        if len(self.recent) > 2 * _RECENT:
            newest = sorted(self.recent)[-_RECENT:]
            self.begin = newest[0]
            self.recent = {time: self.recent[time] for time in newest}


def mark_of(positions: Mapping[str, TimedPosition]) -> str:
    """The positions in the logs of some pods, by the pods' names, as text."""
    return json.dumps({name: asdict(at) for name, at in positions.items()})


def positions_of(mark: str) -> dict[str, TimedPosition]:
    """The positions that `mark_of` wrote; none for an empty text."""
    found: dict[str, Any] = json.loads(mark) if mark else {}
    return {name: TimedPosition(**fields) for name, fields in found.items()}


class TimedLines:
    """Reads a log with times, from `position.since` on; it moves `position` along.

    With `whole`, a line is given when its end is there. With `tail`, what is older than
    the first line is not wanted. What the kubelet says instead of a line is no output.
    """

    def __init__(
        self, position: TimedPosition, *, whole: bool = False, tail: bool = False
    ) -> None:
        self.complaint = ""
        """Why the kubelet gave no more, in its words; empty if it did not say."""
        self._position = position
        self._whole = whole
        self._tail = tail
        # Lines that were read before, by their times.
        self._known = dict(position.recent)
        self._begin = position.begin
        self._last = position.last
        self._partial = position.partial
        self._held = b""
        self._in_line = False
        # A log that is read from a time on may begin inside of an older line.
        self._is_at_begin = bool(position.begin)
        # A log only grows: behind a line that is new, all are. So a clock that is set
        # back hides none.
        self._is_behind_known = not position.recent
        # Of the line that is being read: its bytes so far, and how many are known.
        self._size = 0
        self._skip = 0
        self._second: tuple[bytes, bytes] = (b"", b"")
        self._second_text = ""

    def feed(self, part: bytes) -> bytes:
        """What is new in a part of the log, without the times."""
        data = self._held + part
        self._held = b""
        new: list[bytes] = []
        begin = 0
        while begin < len(data):
            end = data.find(b"\n", begin) + 1 or len(data)
            text = data[begin:end]
            if not self._in_line:
                found = _TIME.match(text)
                if self._must_wait(text, found):
                    self._held = text
                    break
                text = self._begin_line(text, found)
            new.append(self._new_in(text))
            begin = end
        return b"".join(new)

    def finish(self) -> bytes:
        """What is new in the rest: nothing more comes of the last line."""
        self._whole = False
        return self.feed(b"")

    def end(self) -> None:
        """The stream has ended. More may come of the last line by another."""
        self._is_complaint(self._held)

    def _must_wait(self, text: bytes, found: re.Match[bytes] | None) -> bool:
        """Whether the beginning of a line must wait for more of it."""
        if text.endswith(b"\n"):
            return False
        # Behind the time there is a space, and then at least the end of the line.
        is_begun = found is not None and found.end() + 1 < len(text)
        return self._whole or (not is_begun and len(text) < _LONGEST_TIME)

    def _begin_line(self, text: bytes, found: re.Match[bytes] | None) -> bytes:
        """Begin a line; returns it without its time."""
        self._size = 0
        is_at_begin = self._is_at_begin
        self._is_at_begin = False
        if found is None:
            is_output = not self._is_complaint(text) and not is_at_begin
            self._skip = 0 if is_output else _WHOLE
            return text
        time = self._time(found)
        self._skip = 0 if self._is_behind_known else self._known_part(time)
        self._is_behind_known = self._skip != _WHOLE
        if self._skip == 0:
            if self._tail and not self._position.begin:
                self._position.begin = time
            self._position.note(time)
        return text[found.end() + 1 :]

    def _is_complaint(self, text: bytes) -> bool:
        """Whether this is a word of the kubelet instead of a line, and note it."""
        if not text.startswith(_KUBELET_SAYS):
            return False
        self.complaint = text.decode(errors="replace").strip()
        return True

    def _known_part(self, time: str) -> int:
        """How many bytes of the line with this time were read before."""
        count = self._known.get(time, 0)
        if count:
            self._known[time] = count - 1
            is_partial = self._partial and time == self._last and count == 1
            return self._partial if is_partial else _WHOLE
        return _WHOLE if time < self._begin else 0

    def _time(self, found: re.Match[bytes]) -> str:
        second, fraction, zone = found.groups()
        if (second, zone) != self._second:
            # Most lines have the second of the line before.
            at = datetime.fromisoformat((second + zone).decode())
            self._second = (second, zone)
            self._second_text = str(int(at.timestamp()))
        return f"{self._second_text}.{(fraction or b'').decode():0<9}"

    def _new_in(self, text: bytes) -> bytes:
        """What is new in the next part of a line."""
        known = max(self._skip - self._size, 0)
        self._size += len(text)
        self._in_line = not text.endswith(b"\n")
        if self._skip != _WHOLE:
            size = max(self._size, self._skip)
            self._position.partial = size if self._in_line else 0
        return text[known:]
