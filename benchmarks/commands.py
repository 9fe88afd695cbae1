"""How fast the command starts, against a bare interpreter of the same environment."""

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.bench import scaled, serving, timed
from benchmarks.figures import Figure, alternate, in_rounds
from tests.support.instance import TestInstance

GROUP = "commands"
GPUYARD = str(Path(sys.executable).with_name("gpuyard"))


def measure(scale: float) -> Iterator[Figure]:
    """`--help` and `jobs`, each in turns with a bare interpreter."""
    with serving() as (instance, web):
        web.submit(
            [
                {"name": f"done-{n}", "command": ["/bin/true"], "workdir": "/tmp"}
                for n in range(20)
            ]
        )
        instance.wait(web.get("/api/v1/jobs")["items"][0]["id"])
        for name, target in (("--help", 10), ("jobs", 20)):
            yield _against_bare(name, target, instance, scale)


def _against_bare(
    name: str, target: float, instance: TestInstance, scale: float
) -> Figure:
    rounds = scaled(6, scale)
    values, floors = alternate(
        scaled(30, scale, rounds),
        lambda: _ms([GPUYARD, name], instance),
        lambda: _ms([sys.executable, "-c", "pass"], instance),
    )
    return Figure(
        GROUP,
        f"`gpuyard {name}`",
        in_rounds(values, rounds),
        "ms",
        target,
        in_rounds(floors, rounds),
        "bare interpreter",
    )


def _ms(command: list[str], instance: TestInstance) -> float:
    run = partial(
        subprocess.run,
        command,
        env={**os.environ, **instance.environment},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return timed(run) * 1000
