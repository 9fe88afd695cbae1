"""Where the trackers of a job show it: the addresses that W&B and MLflow print."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_WANDB = re.compile(
    r"https?://[^\s/@]{1,200}/[\w.-]{1,200}/[\w.-]{1,200}/runs/([A-Za-z0-9_-]{1,64})"
)
_MLFLOW = re.compile(
    r"https?://[^\s/@]{1,200}/[^\s]{0,200}?#/experiments/\d{1,40}/runs/([0-9a-f]{32})"
)
_LONGEST_LINE = 2_000
_MOST = 20


@dataclass(frozen=True, slots=True)
class TrackerLink:
    """A page of a run: `tracker` is wandb or mlflow, `run` the run's id there."""

    tracker: str
    run: str
    url: str


class TrackerLinks:
    """Collects pages from lines as they come: each once, in their order, at most 20. An
    address that holds a user or a password is none.
    """

    def __init__(self) -> None:
        self.found: list[TrackerLink] = []

    def look(self, line: str) -> None:
        """Take the pages that a line names."""
        if "/runs/" not in line or len(self.found) >= _MOST:
            return
        plain = _ESCAPES.sub("", line[:_LONGEST_LINE])
        for tracker, form in (("mlflow", _MLFLOW), ("wandb", _WANDB)):
            for match in form.finditer(plain):
                link = TrackerLink(tracker, match[1], match[0])
                if link not in self.found and len(self.found) < _MOST:
                    self.found.append(link)


def links_of(lines: Iterable[str]) -> list[TrackerLink]:
    """The pages that the lines of an output name."""
    links = TrackerLinks()
    for line in lines:
        links.look(line)
    return links.found
