"""`python -m benchmarks [GROUP…]`: measure this machine.

Prints figures, floors, ratios and targets.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.bench import fdatasync_ms, scratch, slow_sync
from benchmarks.figures import (
    Figure,
    machine,
    markdown,
    plain,
    write_into_page,
)

# On a slow disk only what syncs can differ.
DISKS = {
    "as-is": (
        "ledger",
        "http",
        "jobs",
        "idle",
        "scheduler",
        "engines",
        "server",
        "commands",
        "studies-results",
        "studies-runtime",
        "prompts",
        "verification",
        "gpu",
    ),
    "4ms": ("ledger", "http", "jobs", "idle"),
}


# The first needs an environment with PyTorch, and two cores of its own for a minute; the
# second a GPU.
ON_REQUEST = ("studies-runtime", "gpu")


def run_group(group: str, disk: str, scale: float) -> Iterator[Figure]:
    """The figures of one group, as they come."""
    environment = {**os.environ, "GPUYARD_BENCH_DISK": disk}
    if disk == "4ms":
        environment["LD_PRELOAD"] = slow_sync()
    command = [sys.executable, "-m", "benchmarks.one", group, str(scale)]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        for line in process.stdout:
            yield replace(Figure(**json.loads(line)), disk=disk)
    if process.returncode:
        raise SystemExit(
            f"benchmarks: {group} on the disk {disk} left with {process.returncode}"
        )


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
        "--markdown", action="store_true", help="a table for docs/benchmarks.md"
    )
    parser.add_argument(
        "--write", action="store_true", help="put that table into docs/benchmarks.md"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document")
    arguments = parser.parse_args()
    unknown = set(arguments.groups) - set(DISKS["as-is"])
    if unknown:
        parser.error(
            f"there is no group {', '.join(sorted(unknown))}; there are"
            f" {', '.join(DISKS['as-is'])}"
        )
    figures: list[Figure] = []
    for disk in DISKS if arguments.disk == "both" else [arguments.disk]:
        for group in DISKS[disk]:
            if (
                group not in arguments.groups
                if arguments.groups
                else group in ON_REQUEST
            ):
                continue
            for figure in run_group(group, disk, arguments.scale):
                figures.append(figure)
                print("  ".join(figure.cells()), file=sys.stderr, flush=True)
    if arguments.json:
        print(json.dumps([figure.to_json() for figure in figures]))
        return
    with scratch() as folder:
        about = machine(fdatasync_ms(folder))
    if arguments.write:
        share = (
            ""
            if arguments.scale == 1
            else f" Counts are {arguments.scale:g} of the full ones."
        )
        write_into_page("bench", f"{about}{share}\n\n{markdown(figures)}")
    print(f"{about}\n\n{markdown(figures) if arguments.markdown else plain(figures)}")


if __name__ == "__main__":
    main()
