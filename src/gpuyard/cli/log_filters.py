"""`gpuyard logs` with conditions: only the lines that meet them."""

import json
import sys
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuyard.cli.moments import moment

if TYPE_CHECKING:
    from gpuyard.client.sync import Client

_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Filters:
    """What was asked for on the command line; `tail`: only the last so many lines."""

    search: str | None
    regex: str | None
    ignore_case: bool
    level: str | None
    section: str | None
    since: str | None
    until: str | None
    tail: int | None
    attempt: int | None
    as_json: bool

    def __bool__(self) -> bool:
        """Whether lines are looked for, or all bytes are wanted as they are."""
        texts = (self.search, self.regex, self.level, self.section)
        times = (self.since, self.until)
        return self.as_json or any(given is not None for given in (*texts, *times))

    def asked(self) -> dict[str, Any]:
        """The same for the server. InvalidInputError."""
        return {
            "search": self.search,
            "regex": self.regex,
            "ignore_case": self.ignore_case or None,
            "level": self.level,
            "section": self.section,
            "since": None if self.since is None else moment("--since", self.since),
            "until": None if self.until is None else moment("--until", self.until),
            "attempt": self.attempt,
            "sections": self.as_json or None,
        }


def print_lines(
    client: "Client", job_id: str, filters: Filters, *, follow: bool
) -> None:
    """Print the lines; with `follow`, those that come until the job is over, too."""
    asked = filters.asked()
    last_of_section = filters.tail is not None and filters.section is not None
    tail = None if last_of_section else filters.tail
    lines: Iterable[dict[str, Any]] = client.log_lines(
        job_id, tail=tail, follow=follow and not last_of_section, limit=_PAGE, **asked
    )
    if last_of_section:
        # Sections are told from the beginning on.
        lines = deque(lines, maxlen=filters.tail)
    for line in lines:
        print_line(line, as_json=filters.as_json)


def print_line(line: dict[str, Any], *, as_json: bool) -> None:
    """Print one line, at once: somebody may be waiting for it."""
    text = json.dumps(line) if as_json else line["text"]
    sys.stdout.buffer.write(text.encode(errors="replace") + b"\n")
    sys.stdout.buffer.flush()
