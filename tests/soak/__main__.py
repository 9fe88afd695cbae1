"""`python -m tests.soak --minutes 10 [--rounds N] [--seed N] [--database
sqlite|postgresql|both]`.

With `--rounds` it is a kill loop: so many rounds of `kill -9`, however long they take.
Exit code 1 when a promise was broken.
"""

import argparse
import random
import sys

from tests.soak.soak import soak


def main() -> int:
    """Run what was asked for; 1 when a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument(
        "--database", choices=("sqlite", "postgresql", "both"), default="both"
    )
    words = parser.parse_args()
    databases = (
        ("sqlite", "postgresql") if words.database == "both" else (words.database,)
    )
    each_s = 0.0 if words.rounds else words.minutes * 60 / len(databases)
    broken = 0
    for database in databases:
        result = soak(
            seed=words.seed,
            rounds=words.rounds,
            storm_s=each_s / 3,
            flat_s=each_s * 2 / 3,
            database=database,
        )
        sys.stdout.writelines(
            f"{line}\n"
            for line in (f"{database}, seed {words.seed}: {result}", *result.faults)
        )
        sys.stdout.flush()
        broken += bool(result.faults)
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
