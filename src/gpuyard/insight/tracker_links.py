"""Where the trackers of a job show it: the addresses that W&B and MLflow print."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_WANDB = re.compile(
    r"https?://[^\s/@]{1,200}/[\w.-]{1,200}/[\w.-]{1,200}/runs/([\w-]{1,64})"
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


def links_of(lines: Iterable[str]) -> list[TrackerLink]:
    """The pages that the lines of an output name, each once, in their order; at most
    20. An address that holds a user or a password is none.
    """
    found: dict[str, TrackerLink] = {}
    for line in lines:
        if "/runs/" not in line:
            continue
        plain = _ESCAPES.sub("", line[:_LONGEST_LINE])
        for tracker, form in (("mlflow", _MLFLOW), ("wandb", _WANDB)):
            for match in form.finditer(plain):
                found.setdefault(match[0], TrackerLink(tracker, match[1], match[0]))
        if len(found) >= _MOST:
            break
    return list(found.values())[:_MOST]
