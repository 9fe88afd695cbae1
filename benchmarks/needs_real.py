"""What gpuyard reads off real public training scripts, against what people expect.

`python -m benchmarks.needs_real --half HALF` computes the confusion of the classes of
GPU, with one of HALVES for HALF. Packages are downloaded with pip. Repositories come from clones
that lie in the folder after `--clones`, each as `OWNER+NAME`; without it, only
packages are read.
"""

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bench import ROOT
from benchmarks.figures import Rows, markdown_table
from benchmarks.page import computed_by, store_table
from tests.support.real_scripts import (
    CLASSES,
    UNKNOWN,
    Script,
    found_class,
    package_in,
    read_in,
    repository_in,
    scripts_of,
)

HALVES = ("development", "held-out", "afterwards", "read-once")
PACKAGES = ROOT / "tests" / "unit" / "insight" / "needs" / "real_packages.json"
REPOSITORIES = ROOT / "benchmarks" / "data" / "real_scripts.json"


@dataclass(frozen=True, slots=True)
class Reading:
    """A script, and what was read off it."""

    script: Script
    found: dict[str, Any]

    @property
    def answer(self) -> str:
        """The class that was read."""
        return found_class(self.found)

    @property
    def is_right(self) -> bool:
        """Whether a person would have said the same class."""
        return self.answer in self.script.expected

    @property
    def expected(self) -> str:
        """The row of the table: what was read, where that is right."""
        return self.answer if self.is_right else self.script.expected[0]

    @property
    def is_near(self) -> bool | None:
        """Whether the memory is what a person says, or a fifth beside it; None where
        nobody says it, or nothing was read.
        """
        wanted = self.script.memory_gb
        found = self.found["needed_gb"]
        if wanted is None or found is None:
            return None
        return wanted[0] / 1.2 <= found <= wanted[1] * 1.2

    @property
    def has_weights(self) -> bool | None:
        """Whether the weights are within a tenth; None where nobody counted them."""
        wanted = self.script.millions
        if wanted is None:
            return None
        return abs((self.found["parameters"] or 0) - wanted * 1e6) <= 1e5 * wanted


def readings(half: str, cache: Path, clones: Path | None) -> Iterator[Reading]:
    """Read the scripts of a half."""
    for script in scripts_of(PACKAGES):
        if script.half == half:
            yield Reading(script, read_in(script, package_in(cache, script)))
    for script in scripts_of(REPOSITORIES) if clones else []:
        if script.half == half and clones is not None:
            root = repository_in(cache, clones, script)
            yield Reading(script, read_in(script, root))


def table(found: list[Reading]) -> Rows:
    """A row for each class that people expect, with what was read; then how many
    answers were right.
    """
    counts = Counter((each.expected, each.answer) for each in found)
    rows = [["expected", *CLASSES]]
    for wanted in CLASSES:
        cells = [str(counts[wanted, given] or "–") for given in CLASSES]
        if set(cells) != {"–"}:
            rows.append([wanted, *cells])
    weights = [each.has_weights for each in found if each.has_weights is not None]
    near = [each.is_near for each in found if each.is_near is not None]
    gpus = sum(each.script.gpus == each.found["needs"]["gpus"] for each in found)
    right = sum(each.is_right for each in found)
    silent = sum(not each.is_right and each.answer == UNKNOWN for each in found)
    wrong = len(found) - right - silent
    results = (
        f"right: {right} of {len(found)}",
        f"not known, though a person knows: {silent} of {len(found)}",
        f"wrong: {wrong} of {len(found)}",
        f"memory as a person says, or a fifth beside it: {sum(near)} of {len(near)}",
        f"number of GPUs: {gpus} of {len(found)}",
        f"weights within 10 %: {sum(weights)} of {len(weights)}",
    )
    rows += [[text, *[""] * len(CLASSES)] for text in results]
    return rows


def _line(each: Reading) -> str:
    mark = "   " if each.is_right else "NO "
    needed = each.found["needed_gb"]
    weights = (each.found["parameters"] or 0) / 1e6
    return (
        f"{mark}{each.script.source} {' '.join(each.script.words)[:60]}: expected"
        f" {each.script.gpus} × {each.script.memory_gb} GB, {each.script.millions} M;"
        f" read {each.found['needs']['gpus']} × {needed} GB, {weights:.3f} M,"
        f" {each.found['confidence']} {each.found['unknown'][:1]}"
    )


def main() -> None:
    """Compute the table and print it."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.needs_real", description=__doc__
    )
    parser.add_argument(
        "--half",
        choices=HALVES,
        default="development",
    )
    parser.add_argument("--clones", type=Path, help="the folder of the clones")
    parser.add_argument("--cache", type=Path, help="where downloads are kept")
    parser.add_argument("--each", action="store_true", help="show each script")
    parser.add_argument(
        "--write", action="store_true", help="put the table into docs/benchmarks.md"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        cache = arguments.cache or Path(name)
        half = arguments.half.replace("-", " ")
        found = list(readings(half, cache, arguments.clones))
    if arguments.each:
        print("\n".join(map(_line, found)))
    rows = table(found)
    print(markdown_table(rows))
    if arguments.write:
        words = f"python -m benchmarks.needs_real --half {arguments.half}"
        store_table(f"needs-real-{arguments.half}", computed_by(words), rows)


if __name__ == "__main__":
    main()
