"""`python -m benchmarks.curves [--write]`: how well the reader of output finds the
points in the corpus of real logs, by format.

`--write` puts the table into docs/benchmarks.md.
"""

import argparse
from collections.abc import Iterable

from benchmarks.figures import write_into_page
from tests.support.corpus import CorpusLog, Score, corpus, score, total

COLUMNS = ["format", "version", "points", "precision", "recall"]


def table() -> str:
    """One row for each log, and the sums; first the logs that the reader was built
    with, then those held out.
    """
    logs = corpus()
    known = [log for log in logs if not log.held_out]
    held_out = [log for log in logs if log.held_out]
    return "\n\n".join(
        [
            _rows(f"{len(known)} formats", known),
            "Held out, and nothing was built for them:",
            _rows(f"{len(held_out)} formats held out", held_out),
        ]
    )


def _rows(name: str, logs: list[CorpusLog]) -> str:
    scores = [score(log) for log in logs]
    rows = [COLUMNS, ["---", "---", "---:", "---:", "---:"]]
    for log, reached in zip(logs, scores, strict=True):
        rows.append(_row(log.program, log.version, reached))
    rows.append(_row(f"**{name}**", "", total(scores)))
    return "\n".join(_line(row) for row in rows)


def _row(program: str, version: str, reached: Score) -> list[str]:
    if not reached.expected:
        return [program, version, "none", _share(reached.precision), "–"]
    precision = _share(reached.precision) if reached.found else "–"
    return [program, version, str(reached.expected), precision, _share(reached.recall)]


def _share(share: float) -> str:
    return f"{share:.2f}"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Score the corpus and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.curves", description=__doc__
    )
    parser.add_argument(
        "--write", action="store_true", help="put the table into docs/benchmarks.md"
    )
    arguments = parser.parse_args()
    text = table()
    print(text)
    if arguments.write:
        write_into_page("curves", text)


if __name__ == "__main__":
    main()
