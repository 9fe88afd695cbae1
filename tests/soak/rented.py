"""`kill -9` of the server at every step of a rented machine's life, many times.

    python -m tests.soak.rented --rounds 200 [--seed N]

Each round is one job on a machine of the fake cloud, which really joins. Exit code 1 if
an attempt had more or fewer than one machine, or one was left.
"""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.support.rented import MOMENTS, renting_instance


def main() -> int:
    """Run the rounds; 1 when a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.rented")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    words = parser.parse_args()
    draw = random.Random(words.seed)
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="gy-cloud-") as folder,
        renting_instance(Path(folder)) as rented,
    ):
        for number in range(words.rounds):
            moment = draw.choice(MOMENTS)
            try:
                rented.survive(moment)
            except AssertionError as error:
                sys.stdout.write(
                    f"seed {words.seed}, round {number} ({moment}): {error}\n"
                )
                return 1
        machines = len(rented.cloud.rows())
    took_s = time.monotonic() - began
    sys.stdout.write(
        f"seed {words.seed}: {words.rounds} kills, {machines} machines, one for each"
        f" attempt, none left, {took_s:.0f} s\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
