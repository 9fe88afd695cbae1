"""`python -m benchmarks [GROUP…]`: measure this machine.

Prints figures, floors, ratios and targets.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.bench import slow_sync
from benchmarks.figures import Figure, plain
from benchmarks.page import command_line, measured_by, store_figures

# On a slow disk only what syncs can differ.
DISKS = {
    "as-is": (
        "ledger",
        "costs",
        "http",
        "jobs",
        "idle",
        "scheduler",
        "external-queues",
        "kubernetes",
        "server",
        "commands",
        "studies-results",
        "studies-runtime",
        "prompts",
        "verification",
        "needs",
        "packages",
        "logs",
        "series",
        "datasets",
        "scale",
        "web",
        "gpu",
        "proof",
    ),
    "4ms": ("ledger", "http", "jobs", "idle"),
}


# The first needs an environment with PyTorch, and two cores of its own for a minute; the
# second Chromium and the page, which needs node; the third a GPU; the last 1 GiB.
ON_REQUEST = ("studies-runtime", "web", "gpu", "proof")

# Where the figures of a group stand in the page; all others stand together.
PLACES = {
    "studies-results": "studies",
    "studies-runtime": "studies",
    "prompts": "prompts",
    "verification": "verification",
    "needs": "needs",
    "scale": "scale",
    "web": "web",
    "gpu": "gpu",
    "proof": "proof",
}


def run_group(group: str, disk: str, scale: float) -> list[Figure]:
    """The figures of one group; each is told as it comes."""
    figures: list[Figure] = []
    environment = {**os.environ, "GPUYARD_BENCH_DISK": disk}
    if disk == "4ms":
        environment["LD_PRELOAD"] = slow_sync()
    command = [sys.executable, "-m", "benchmarks.one", group, str(scale)]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        for line in process.stdout:
            figure = replace(Figure(**json.loads(line)), disk=disk)
            print("  ".join(figure.cells()), file=sys.stderr, flush=True)
            figures.append(figure)
    if process.returncode:
        raise SystemExit(
            f"benchmarks: {group} on the disk {disk} left with {process.returncode}"
        )
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "groups",
        nargs="*",
        metavar="GROUP",
        help=f"{' '.join(DISKS['as-is'])}; by default all but {' '.join(ON_REQUEST)}",
    )
    parser.add_argument(
        "--scale",
        type=float,
        default=1.0,
        help="share of the full counts; 0.01 is a quick look",
    )
    parser.add_argument("--disk", choices=["as-is", "4ms", "both"], default="both")
    parser.add_argument(
        "--write", action="store_true", help="put the figures into docs/benchmarks.md"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document")
    arguments = parser.parse_args()
    unknown = set(arguments.groups) - set(DISKS["as-is"])
    if unknown:
        parser.error(
            f"there is no group {', '.join(sorted(unknown))}; there are"
            f" {', '.join(DISKS['as-is'])}"
        )
    if arguments.write and arguments.scale != 1:
        parser.error("--write: only full counts go into the page; leave out --scale")
    measured = measured_by(command_line("bench", sys.argv[1:]))
    figures: list[Figure] = []
    for group, disk in chosen(arguments.groups, arguments.disk):
        found = run_group(group, disk, arguments.scale)
        figures += found
        if arguments.write:
            place = PLACES.get(group, "bench")
            store_figures(f"{place}.{group}.{disk}", measured, found)
    if arguments.json:
        print(json.dumps([figure.to_json() for figure in figures]))
    else:
        print(f"{measured}\n\n{plain(figures)}")


def chosen(groups: Sequence[str], disk: str) -> list[tuple[str, str]]:
    """Each group to measure, and on which disk."""
    disks = DISKS if disk == "both" else [disk]
    wanted = groups or [name for name in DISKS["as-is"] if name not in ON_REQUEST]
    return [(name, disk) for disk in disks for name in DISKS[disk] if name in wanted]


if __name__ == "__main__":
    main()
