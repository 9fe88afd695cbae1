"""How fast the command starts, against a bare interpreter of the same environment."""

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bench import scaled, serving, timed
from benchmarks.figures import Figure

GROUP = "commands"
GPUYARD = str(Path(sys.executable).with_name("gpuyard"))


def measure(scale: float) -> Iterator[Figure]:
    """`--help` and `jobs`; every side takes its turn, so that all meet the same
    machine.
    """
    with serving() as (instance, web):
        web.submit(
            [
                {"name": f"done-{n}", "command": ["/bin/true"], "workdir": "/tmp"}
                for n in range(20)
            ]
        )
        instance.wait(web.get("/api/v1/jobs")["items"][0]["id"])
        commands = {
            "bare": [sys.executable, "-c", "pass"],
            "--help": [GPUYARD, "--help"],
            "jobs": [GPUYARD, "jobs"],
        }
        taken: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(scaled(30, scale, 3)):
            for name, command in commands.items():
                taken[name].append(
                    timed(lambda c=command: _run(c, instance.environment))
                )
    floor = statistics.median(taken["bare"]) * 1000
    for name, target in (("--help", 10), ("jobs", 20)):
        value = statistics.median(taken[name]) * 1000
        yield Figure(
            GROUP, f"`gpuyard {name}`", value, "ms", target, floor, "bare interpreter"
        )


def _run(command: list[str], environment: dict[str, str]) -> None:
    subprocess.run(
        command,
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        check=True,
    )
