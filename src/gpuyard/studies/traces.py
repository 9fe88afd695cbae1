"""The profiles that the ranks of a strategy left."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

_RANK = re.compile(r"rank[-_]?(\d+)(?!\d)")
_MOST = 100_000
"""Of so many files in its folder, those beyond are not looked at."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A profile that a rank left; `rank` is None where the file's name does not say."""

    strategy_id: str
    rank: int | None
    path: Path


def traces_of(folder: Path, strategy_id: str) -> Iterator[Trace]:
    """Yield the profiles in a strategy's folder, by name."""
    for path in sorted(islice((folder / "profiling").rglob("*"), _MOST)):
        if path.is_file():
            match = _RANK.search(path.name)
            yield Trace(strategy_id, int(match[1]) if match else None, path)
