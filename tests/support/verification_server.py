"""Processes that verify until they are killed or there is nothing left, saying what
they do.
"""

import asyncio
import os
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import IO, Any

from gpuyard.config.verification import VerificationPolicy
from gpuyard.storage.blobs import BlobStore
from gpuyard.storage.streams import Blob
from gpuyard.verification.batch_samples import take_samples
from gpuyard.verification.classes import Class
from gpuyard.verification.pipelines.answering import answer
from gpuyard.verification.pipelines.eviction import evict
from gpuyard.verification.pipelines.generation import generate
from gpuyard.verification.pipelines.sampling import sample
from tests.support.verification import B, LocalTrusted, make_context, open_records

POLICY = VerificationPolicy(
    max_series=18, series_per_run=6, target=12, keep_s=0.2, lease_s=0.2
)


def take_until_dry(place: Path | str, said: Connection, go: Connection) -> None:
    """Take samples for two batches until there are none; `said` gets each as (batch,
    workload, sample), and `go` says when to go on.
    """
    records = open_records(place)
    random = Random(os.getpid())
    batches = [records.new_batch(f"{os.getpid()}") for _ in range(2)]
    said.send("ready")
    while batches:
        go.recv()
        batch = random.choice(batches)
        taken = records.take(B, random.randint(1, 4), batch)
        said.send([(batch, one.workload_id, one.sample_id) for one in taken])
        if not taken:
            batches.remove(batch)
    said.close()


class _TellingStore(BlobStore):
    def __init__(self, root: Path, said: Connection) -> None:
        super().__init__(root)
        self.said = said
        self.step = ""

    def put(self, source: IO[bytes]) -> Blob:
        self._tell("put")
        return super().put(source)

    def read(self, sha256: str, most: int) -> bytes:
        self._tell("read")
        return super().read(sha256, most)

    def delete(self, sha256: str) -> None:
        self._tell("delete")
        super().delete(sha256)

    def _tell(self, what: str) -> None:
        self.said.send((self.step, what))


class _TellingTrusted(LocalTrusted):
    def __init__(self, cls: Class, blobs: _TellingStore) -> None:
        super().__init__(cls)
        self._blobs = blobs

    async def generate(self, cls: Class, count: int, series: int) -> list[list[str]]:
        self._blobs._tell("ask")
        made = await super().generate(cls, count, series)
        return [[f"{os.getpid()} {prompt}" for prompt in prompts] for prompts in made]

    async def solve(
        self, cls: Class, prompts: Sequence[str], seed: int
    ) -> dict[str, str]:
        self._blobs._tell("ask")
        return await super().solve(cls, prompts, seed)


STEPS: dict[str, Any] = {
    "generate": generate,
    "sample": sample,
    "answer": answer,
    "evict": evict,
}


def verify_until_killed(
    place: Path | str, root: Path, said: Connection, go: Connection
) -> None:
    """Go through all steps of class B again and again; `said` gets (step, what) at each
    thing done. A step begins when `go` says so, and ends with ("between", result).
    """
    asyncio.run(_verify(place, root, said, go))


async def _verify(
    place: Path | str, root: Path, said: Connection, go: Connection
) -> None:
    blobs = _TellingStore(root, said)
    records = open_records(place)
    context = make_context(
        records, blobs, _TellingTrusted(B, blobs), policy=POLICY, seed=os.getpid()
    )
    while True:
        for name, step in STEPS.items():
            blobs.step = name
            said.send((name, "begin"))
            go.recv()
            result = await step(context, B)
            said.send(("between", f"{name} {result}"))
        blobs.step = "take"
        batch = records.new_batch("me")
        for one in await take_samples(context, B, 2, batch):
            said.send(("took", one.sample_id))
        records.release_batch(batch)
        records.end_batch(batch, "done")
