"""`python -m tests.simulation [--models] --seed N [--trace]`, or `--seeds FIRST:LAST
[--workers N]`, or `--mutants`. `--models`: the world also has models, prompts and batches.

Exit code 1 when a promise was broken; the command that shows the seed again is printed
with it.
"""

import os
import sys

if __name__ == "__main__" and os.environ.get("PYTHONHASHSEED") != "0":
    # Sets of strings have an order of their own in each process unless this is set, and
    # a trace must be repeatable. Before all other imports, which take two seconds.
    os.execve(
        sys.executable,
        [sys.executable, "-m", "tests.simulation", *sys.argv[1:]],
        {**os.environ, "PYTHONHASHSEED": "0"},
    )

import argparse
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat

from tests.simulation.mutants import MUTANTS, caught
from tests.simulation.run import run


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation", description=__doc__
    )
    parser.add_argument("--seed", type=int)
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--seeds", default="0:200")
    parser.add_argument(
        "--models", action="store_true", help="a world with models and batches"
    )
    parser.add_argument(
        "--mutants",
        action="store_true",
        help="break the product in known ways: is each found?",
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    return parser.parse_args()


def _say(*lines: str) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()


def _tried(seed: int, with_models: bool) -> tuple[int, tuple[str, ...]]:
    return seed, run(seed, with_models=with_models).faults


def main() -> int:
    """Run what was asked for; 1 when a promise was broken."""
    words = _arguments()
    if words.seed is not None:
        outcome = run(words.seed, with_models=words.models)
        if words.trace:
            _say(*outcome.trace)
        _say(*outcome.faults)
        return int(bool(outcome.faults))
    first, last = map(int, words.seeds.split(":"))
    if words.mutants:
        with ProcessPoolExecutor(words.workers) as pool:
            found = list(pool.map(caught, MUTANTS, repeat(first), repeat(last)))
        _say(*(f"{name}: seed {seed}: {said}" for name, seed, said in found))
        return int(any(seed is None for _, seed, _ in found))
    bad = 0
    began = time.monotonic()
    with ProcessPoolExecutor(words.workers) as pool:
        seeds = range(first, last)
        kinds = repeat(words.models)
        for seed, faults in pool.map(_tried, seeds, kinds, chunksize=2):
            if faults:
                bad += 1
                kind = " --models" if words.models else ""
                command = f"python -m tests.simulation{kind} --trace --seed {seed}"
                _say(f"{command}  # {faults[0]}")
    _say(
        f"{last - first} seeds, {bad} with a broken promise,"
        f" {time.monotonic() - began:.0f} s"
    )
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
