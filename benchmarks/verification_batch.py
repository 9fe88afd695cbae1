"""Verification: what a batch costs the server for each executor, with a thousand of
them in this very process.
"""

import resource
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import uvloop

from benchmarks.bench import scaled, scratch
from benchmarks.figures import Figure
from gpuyard.domain.gpus import GPUClass
from gpuyard.storage.blobs import BlobStore
from gpuyard.verification.check import Check
from gpuyard.verification.classes import TRAITS, Class, PracticeClass
from gpuyard.verification.database import Database
from gpuyard.verification.keys import instance_key
from gpuyard.verification.records import Records
from gpuyard.verification.settlement import keep_evidence
from gpuyard.verification.verdict import CheckOutcome
from tests.support.executors import Executors, Honest, executor, make_batch
from tests.support.verification import make_context, stock

GROUP = "verification"
CLASSES: Sequence[Class] = (GPUClass.A6000, GPUClass.T4, PracticeClass.PRACTICE_12)


def figures(scale: float) -> Iterator[Figure]:
    """Processor time and memory, less what the executors themselves take for their
    answers.
    """
    count = scaled(1000, scale, len(CLASSES))
    rounds = [_batch(count) for _ in range(scaled(3, scale))]
    name = f"a batch of {count:,} executors of {len(CLASSES)} classes"
    yield Figure(
        GROUP,
        f"{name}, processor time for each",
        [(one.spent_s - one.theirs_s) / count * 1000 for one in rounds],
        "ms",
        2.0,
        [one.theirs_s / count * 1000 for one in rounds],
        "the executors' own part",
        absolute=True,
    )
    # It is new in the first round only.
    grown = [one.grown_mb for one in rounds[:1]]
    yield Figure(GROUP, f"{name}, memory it takes", grown, "MB", 100.0)


@dataclass(frozen=True)
class Spent:
    """Processor time of a batch, and of the executors' part of it; how far the peak of
    memory rose.
    """

    spent_s: float
    theirs_s: float
    grown_mb: float


def _batch(count: int) -> Spent:
    executors = [executor(f"e{n}", CLASSES[n % len(CLASSES)]) for n in range(count)]
    with scratch() as folder:
        (folder / "answers").mkdir()
        database = Database.open(folder / "verification.db")
        records = Records(database)
        blobs = BlobStore(folder / "blobs")
        for cls in CLASSES:
            workloads = -(-count // len(CLASSES) // TRAITS[cls].prompts) + 1
            stock(records, blobs, cls, workloads)
        context = make_context(records, blobs)
        batch = make_batch(context, Executors(), CLASSES, folder / "answers")
        before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.process_time()
        checks = uvloop.run(batch.run(executors))
        keep_evidence(folder / "evidence", instance_key(folder), checks)
        spent_s = time.process_time() - began
        grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
        assert {check.outcome for check in checks} == {CheckOutcome.PASSED}
        assert len(checks) == count
        theirs_s = uvloop.run(_answer(checks))
        database.close()
    return Spent(spent_s, theirs_s, grown_kb / 1000)


async def _answer(checks: Sequence[Check]) -> float:
    """What the executors' part of the same batch takes."""
    honest = Honest()
    began = time.process_time()
    for check in checks:
        async for _ in honest.rest(
            {"prompts": list(check.taken.series)}, check.taken.seed
        ):
            pass
    return time.process_time() - began
