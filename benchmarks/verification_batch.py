"""Verification: what a batch costs the server for each executor, with a thousand of
them in this very process.
"""

import resource
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import uvloop

from benchmarks.bench import scaled, scratch
from benchmarks.figures import Figure
from gpuyard.domain.gpus import GPUClass
from gpuyard.storage.blobs import BlobStore
from gpuyard.verification.check import Check
from gpuyard.verification.classes import TRAITS, Class, PracticeClass
from gpuyard.verification.database import Database
from gpuyard.verification.executors import Executor
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
    with scratch() as folder:
        database = Database.open(folder / "verification.db")
        records = Records(database)
        blobs = BlobStore(folder / "blobs")
        executors = [executor(f"e{n}", CLASSES[n % len(CLASSES)]) for n in range(count)]
        for cls in CLASSES:
            stock(
                records,
                blobs,
                cls,
                -(-count // len(CLASSES) // TRAITS[cls].prompts) + 1,
            )
        before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        checks, spent_s = _batch(records, blobs, executors, folder)
        assert {check.outcome for check in checks} == {CheckOutcome.PASSED}
        assert len(checks) == count
        grown_mb = (
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
        ) / 1000
        theirs_s = uvloop.run(_answer(checks))
        database.close()
    name = f"a batch of {count:,} executors of {len(CLASSES)} classes"
    yield Figure(
        GROUP,
        f"{name}, processor time for each",
        (spent_s - theirs_s) / count * 1000,
        "ms",
        2.0,
    )
    yield Figure(GROUP, f"{name}, memory it takes", grown_mb, "MB", 100.0)


def _batch(
    records: Records, blobs: BlobStore, executors: Sequence[Executor], folder: Path
) -> tuple[list[Check], float]:
    (folder / "answers").mkdir()
    batch = make_batch(
        make_context(records, blobs), Executors(), CLASSES, folder / "answers"
    )
    began = time.process_time()
    checks = uvloop.run(batch.run(executors))
    keep_evidence(folder / "evidence", instance_key(folder), checks)
    return checks, time.process_time() - began


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
