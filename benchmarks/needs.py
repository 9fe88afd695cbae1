"""What gpuyard reads off training programs, against what people expect.

As a group of `python -m benchmarks` it gives the speeds. `python -m benchmarks.needs
[--write]` computes the confusion of tiers, and puts the table into docs/benchmarks.md.
"""

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, Rows, markdown_table
from benchmarks.page import computed_by, store_table
from gpuyard.cli.recommend import recommendation_for

GROUP = "needs"
PROGRAMS = Path(__file__).parents[1] / "tests" / "unit" / "insight" / "needs"
TIERS = ("CPU_SMALL", "CPU_LARGE", "GPU_SMALL", "GPU_MEDIUM", "GPU_LARGE", None)
_ROUNDS = 9
_LONG_LINES = 2_000
_FILES = 500


def confusion() -> Rows:
    """A row for each tier that people expect, with what was recommended; then how many
    weights and GPUs were right.
    """
    expected = json.loads((PROGRAMS / "expectations.json").read_text())["programs"]
    found = [recommendation_for(row[0], PROGRAMS / "programs") for row in expected]
    pairs = zip(expected, found, strict=True)
    counts = Counter((row[1], each["tier"]) for row, each in pairs)
    rows = [["expected", *map(_name, TIERS)]]
    for wanted in TIERS:
        cells = [str(counts[wanted, given] or "–") for given in TIERS]
        rows.append([_name(wanted), *cells])
    both = list(zip(expected, found, strict=True))
    weights = sum(_has_weights(row, each) for row, each in both)
    gpus = sum(row[3] == each["needs"]["gpus"] for row, each in both)
    rows.append([f"weights within 10 %: {weights} of {len(both)}", *[""] * len(TIERS)])
    rows.append([f"number of GPUs: {gpus} of {len(both)}", *[""] * len(TIERS)])
    return rows


def _name(tier: str | None) -> str:
    return tier or "none is large enough"


def _has_weights(row: list[Any], found: dict[str, Any]) -> bool:
    if row[2] is None or found["parameters"] is None:
        return row[2] == found["parameters"]
    return abs(found["parameters"] - row[2] * 1e6) <= 1e5 * row[2]


def measure(scale: float) -> Iterator[Figure]:
    """The time for a long program, and for a folder of many files."""
    rounds = max(int(_ROUNDS * scale), 1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(_long_program())
        values = [_milliseconds(folder) for _ in range(rounds)]
        words = f"needs of a program of {_LONG_LINES:,} lines"
        yield Figure(GROUP, words, values, "ms", 50, absolute=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_folder(folder)
        values = [_milliseconds(folder) for _ in range(rounds)]
        words = f"needs of a folder of {_FILES} files"
        yield Figure(GROUP, words, values, "ms", 2_000, absolute=True)


def _milliseconds(folder: Path) -> float:
    began = time.perf_counter()
    recommendation_for(["train.py"], folder)
    return 1000 * (time.perf_counter() - began)


def _long_program() -> str:
    """A program of functions with loops and branches, most of which it calls."""
    lines = ["import torch", "from torch import nn"]
    number = 0
    while len(lines) < _LONG_LINES - 4:
        lines += [
            f"def layer_{number}(width, depth={number % 7}):",
            "    layers = []",
            "    for index in range(3):",
            "        if index % 2 == 0:",
            "            layers.append(nn.Linear(width, width))",
            "        else:",
            "            layers.append(nn.ReLU())",
            "    return nn.Sequential(*layers)",
            f"settings_{number} = dict(width=64, lr=1e-3, name='layer_{number}')",
            "",
        ]
        number += 1
    lines.append(f"net = nn.Sequential(*[layer_{number - 1}(64)]).cuda()")
    lines.append("optimizer = torch.optim.AdamW(net.parameters())")
    return "\n".join(lines)


def _write_folder(folder: Path) -> None:
    """A program that imports a chain of modules among many others."""
    for number in range(_FILES - 1):
        following = number + 1
        text = "import torch\nfrom torch import nn\n"
        if following < _FILES - 1 and number < 100:
            text += f"from part_{following} import Part{following}\n"
        text += f"class Part{number}(nn.Module):\n    def __init__(self):\n"
        text += "        super().__init__()\n        self.layer = nn.Linear(8, 8)\n"
        (folder / f"part_{number}.py").write_text(text)
    (folder / "train.py").write_text("from part_0 import Part0\nPart0().cuda()\n")


def main() -> None:
    """Compute the table and print it."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.needs", description=__doc__
    )
    parser.add_argument(
        "--write", action="store_true", help="put the table into docs/benchmarks.md"
    )
    arguments = parser.parse_args()
    rows = confusion()
    print(markdown_table(rows))
    if arguments.write:
        store_table("needs-tiers", computed_by("python -m benchmarks.needs"), rows)


if __name__ == "__main__":
    main()
