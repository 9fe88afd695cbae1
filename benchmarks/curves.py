"""`python -m benchmarks.curves [--write]`: how well the reader of output finds the
points in the corpus of real logs, by format.

`--write` puts the tables into docs/benchmarks.md.
"""

import argparse

from benchmarks.figures import Rows, markdown_table
from benchmarks.page import computed_by, store_table
from tests.support.corpus import Score, corpus, score, total


def table(*, held_out: bool) -> Rows:
    """One row for each log that the reader was built with, or that was held out; and
    the sum.
    """
    logs = [log for log in corpus() if log.held_out == held_out]
    scores = [score(log) for log in logs]
    rows = [["format", "version", "points", "precision", "recall"]]
    for log, reached in zip(logs, scores, strict=True):
        rows.append(_row(log.program, log.version, reached))
    name = f"{len(logs)} formats{' held out' if held_out else ''}"
    rows.append(_row(f"**{name}**", "", total(scores)))
    return rows


def _row(program: str, version: str, reached: Score) -> list[str]:
    if not reached.expected:
        return [program, version, "none", _share(reached.precision), "–"]
    precision = _share(reached.precision) if reached.found else "–"
    return [program, version, str(reached.expected), precision, _share(reached.recall)]


def _share(share: float) -> str:
    return f"{share:.2f}"


def main() -> None:
    """Score the corpus and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.curves", description=__doc__
    )
    parser.add_argument(
        "--write", action="store_true", help="put the tables into docs/benchmarks.md"
    )
    arguments = parser.parse_args()
    for name, held_out in (("curves", False), ("curves-held-out", True)):
        rows = table(held_out=held_out)
        print(f"{markdown_table(rows)}\n")
        if arguments.write:
            store_table(name, computed_by("python -m benchmarks.curves"), rows)


if __name__ == "__main__":
    main()
