"""Verification: sampling a class's series, the barrier, and a batch."""

import asyncio
import io
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

from benchmarks import verification_barrier, verification_batch
from benchmarks.bench import scaled, scratch, timed
from benchmarks.figures import Figure, alternate
from gpuyard.config.verification import VerificationPolicy
from gpuyard.domain.gpus import GPUClass
from gpuyard.storage.blobs import BlobStore
from gpuyard.verification.classes import TRAITS
from gpuyard.verification.context import Context
from gpuyard.verification.database import Database
from gpuyard.verification.pipelines.sampling import sample
from gpuyard.verification.pipelines.step import StepOutcome
from gpuyard.verification.prompts import to_file
from gpuyard.verification.records import Records

GROUP = "verification"
CLASS = GPUClass.A6000


def measure(scale: float) -> Iterator[Figure]:
    """Each figure beside its floor, in turns."""
    # First, since its memory is how far the peak of this process rises.
    yield from verification_batch.figures(scale)
    yield _sampling(scaled(5, scale), scaled(3500, scale, TRAITS[CLASS].prompts))
    yield from verification_barrier.figures(scale)


def _sampling(rounds: int, count: int) -> Figure:
    """A workload takes one prompt of each of 240 series.

    The floor reads as many files, in random order too.
    """
    with scratch() as folder:
        blobs = BlobStore(folder / "blobs")
        names = [
            blobs.put(io.BytesIO(_series(number))).sha256 for number in range(count)
        ]
        paths = [blobs.path(name) for name in names]
        records = Records(Database.open(folder / "verification.db"))
        records.add_series(CLASS, names, 1, count)
        policy = VerificationPolicy(max_series=count, target=count)
        context = Context(records, blobs, lambda cls: None, policy)
        values, floors = alternate(
            rounds,
            lambda: asyncio.run(_sampled(context)) * 1000,
            lambda: timed(lambda: _read(paths)) * 1000,
        )
        records.database.close()
    name = f"{count:,} series of {TRAITS[CLASS].prompts} prompts sampled"
    floor_name = "one prompt file each read"
    return Figure(GROUP, name, values, "ms", 1.2, floors, floor_name)


async def _sampled(context: Context) -> float:
    """Seconds that one run of sampling takes; what it made is retired, so that the next
    has as much to do.
    """
    began = time.perf_counter()
    outcome = await sample(context, CLASS)
    taken = time.perf_counter() - began
    made = context.records.unfinished(CLASS)
    assert (outcome, len(made)) == (
        StepOutcome.DONE,
        context.policy.target // TRAITS[CLASS].prompts,
    )
    for workload in made:
        context.records.retire_workload(workload.id)
    return taken


def _read(paths: list[Path]) -> None:
    for path in Random(1).sample(paths, len(paths)):
        path.read_text().splitlines()


def _series(number: int) -> bytes:
    return to_file(
        f"Series {number}: what follows from {place}, and why is that so?"
        for place in range(240)
    )
