"""The runtime of studies: tokens per second on CPU beside transformers', in turns in
the same processes.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bench import PROGRAMS, ROOT, scaled, scratch
from benchmarks.figures import Figure
from tests.integration.studies.test_runtime_programs.running import free_port
from tests.support.huggingface import make_trainer_python

GROUP = "studies-runtime"
RUNTIME = ROOT / "src/gpuyard/studies/runtime"
MODES = {
    "alone": (1, "one process", "transformers' generate", 0.9),
    "tp": (2, "two tensor-parallel ranks", "transformers' own, on two ranks", 1.0),
    "pp": (2, "two stages with two micro-batches", "the same without", 1.3),
}


def measure(scale: float) -> Iterator[Figure]:
    """Both sides take turns in the same processes, of one thread each."""
    python = make_trainer_python()
    with scratch() as folder:
        subprocess.run(
            [python, PROGRAMS / "study_rank.py", "make", folder],
            check=True,
            capture_output=True,
        )
        for mode, (world, name, floor_name, target) in MODES.items():
            found = _turns(python, folder, mode, world, scaled(9, scale, 3))
            yield Figure(
                GROUP,
                f"tokens/s of {name}",
                found["ours"],
                "/s",
                target,
                found["floor"],
                floor_name,
                least=True,
            )


def _turns(
    python: Path, folder: Path, mode: str, world: int, rounds: int
) -> dict[str, list[float]]:
    """What rank 0 says."""
    port = str(free_port())
    command = [python, PROGRAMS / "study_rank.py", RUNTIME, folder, mode, str(rounds)]
    ranks = [
        subprocess.Popen(
            command,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "RANK": str(rank),
                "WORLD_SIZE": str(world),
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(world),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            },
        )
        for rank in range(world)
    ]
    try:
        texts = [rank.communicate(timeout=600)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return json.loads(texts[0].splitlines()[-1])
