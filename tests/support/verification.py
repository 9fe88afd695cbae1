"""What tests of verification share: trusted executors in this process, a clock moved by
hand, stores that fail.
"""

import asyncio
import hashlib
import heapq
import io
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import count
from pathlib import Path
from random import Random
from typing import IO, Any

from gpuyard.config.verification import VerificationPolicy
from gpuyard.storage.blobs import Blobs, BlobStore
from gpuyard.storage.streams import Blob
from gpuyard.verification.answers import MOST_BYTES, IncomingFile, answers_of
from gpuyard.verification.classes import TRAITS, Class, PracticeClass
from gpuyard.verification.clock import SystemClock
from gpuyard.verification.context import Context
from gpuyard.verification.database import Database
from gpuyard.verification.prompts import to_file
from gpuyard.verification.protocol import Piece
from gpuyard.verification.records import Records
from gpuyard.verification.records.executors import ExecutorRecord
from gpuyard.verification.records.workloads import HiddenPrompt, NewWorkload
from gpuyard.verification.tables import executors
from gpuyard.verification.trusted_executor import (
    ExecutorFault,
    FollowedAnswers,
    TrustedAway,
    TrustedExecutor,
)

A = PracticeClass.PRACTICE_12
B = PracticeClass.PRACTICE_6
SMALL = VerificationPolicy(max_series=30, series_per_run=15, target=12)
"""A class of 6 or 12 prompts has enough series for it after two runs."""


def answer_to(prompt: str, seed: int) -> str:
    """What every honest executor answers."""
    return hashlib.sha256(f"{seed} {prompt}".encode()).hexdigest()[:16]


def digest_of(nonce: str) -> str:
    """What every honest executor's proof comes to."""
    return hashlib.sha256(f"proof {nonce}".encode()).hexdigest()


class LocalTrusted:
    """A trusted executor of class `cls` in this process: prompts are numbered, answers
    follow from seed and prompt.

    `dead`: it fails. `busy`: other jobs have its place. `hanging`: it never comes back. `shorter_by`: so many of the
    prompts of a series are the same.
    `forgets`: it gives no answer to these. `says`: what it answers to others.
    `solve_s`: how far each solving moves a `HandClock`.
    """

    def __init__(self, cls: Class, clock: "HandClock | None" = None) -> None:
        self.name = f"trusted-{cls}"
        self.dead = self.busy = self.hanging = False
        self.shorter_by = 0
        self.solve_s = 0.0
        self.forgets: Callable[[str], bool] = lambda prompt: False
        self.says = answer_to
        self.at_once = self.most_at_once = 0
        self.seeds: list[int] = []
        self.gpu_class = cls
        self.runtime: Mapping[str, str] = {}
        self._cls = cls
        self._clock = clock
        self._numbers = count(1)

    async def generate(self, cls: Class, count: int, series: int) -> list[list[str]]:
        await self._work(cls)
        return [
            [self._prompt(same=place < self.shorter_by) for place in range(count)]
            for _ in range(series)
        ]

    async def solve(
        self, cls: Class, prompts: Sequence[str], seed: int
    ) -> dict[str, str]:
        await self._work(cls)
        assert len(prompts) == len(set(prompts)) == TRAITS[cls].prompts, (
            "both sides solve batches of one size"
        )
        self.seeds.append(seed)
        if self._clock:
            self._clock.advance(self.solve_s)
        return {
            prompt: self.says(prompt, seed)
            for prompt in prompts
            if not self.forgets(prompt)
        }

    async def follow(
        self, cls: Class, prompts: Sequence[str], seed: int, tokens: str
    ) -> FollowedAnswers:
        await self._work(cls)
        raise ExecutorFault("has no fingerprints")

    async def prove(
        self, cls: Class, nonce: str, proofs: Mapping[str, Any]
    ) -> dict[str, str]:
        await self._work(cls)
        names = {"vram": "vram_gb", "speed": "speed"}
        made = [name for name, asked in names.items() if asked in proofs]
        return {name: digest_of(f"{name} {nonce}") for name in made}

    def _prompt(self, *, same: bool) -> str:
        return (
            f"{self._cls} asks the same"
            if same
            else f"{self._cls} asks: what is {next(self._numbers)}?"
        )

    async def _work(self, cls: Class) -> None:
        assert cls is self._cls
        if self.dead:
            raise ExecutorFault("is gone")
        if self.busy:
            raise TrustedAway("has not begun, behind job_2", busy=True)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await (asyncio.Event().wait() if self.hanging else asyncio.sleep(0))
        finally:
            self.at_once -= 1


class HandClock(SystemClock):
    """Time passes when it is told to."""

    def __init__(self, at: float = 1_800_000_000.0) -> None:
        self._at = at
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = count()

    def now(self) -> float:
        return self._at

    def monotonic(self) -> float:
        return self._at

    async def sleep(self, seconds: float) -> None:
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (self._at + seconds, next(self._numbers), future))
        await future

    def advance(self, seconds: float) -> None:
        """Let time pass; who has slept long enough wakes."""
        self._at += seconds
        while self._waiting and self._waiting[0][0] <= self._at:
            future = heapq.heappop(self._waiting)[2]
            if not future.done():
                future.set_result(None)

    @property
    def waits(self) -> list[float]:
        """How long each who sleeps has still to wait, shortest first."""
        return sorted(
            due - self._at for due, _, future in self._waiting if not future.done()
        )


class BrokenStore(BlobStore):
    """A store of which some blobs cannot be used: those whose content is told by
    `breaks`.
    """

    def __init__(self, root: Path, breaks: Callable[[bytes], bool]) -> None:
        super().__init__(root)
        self.breaks = breaks

    def put(self, source: IO[bytes]) -> Blob:
        if self.breaks(source.read()):
            raise OSError(5, "Input/output error")
        source.seek(0)
        return super().put(source)

    def read(self, sha256: str, most: int) -> bytes:
        if self.breaks(self.path(sha256).read_bytes()):
            raise OSError(5, "Input/output error")
        return super().read(sha256, most)


def make_context(
    records: Records,
    blobs: Blobs,
    *trusted: LocalTrusted,
    policy: VerificationPolicy = SMALL,
    clock: SystemClock | None = None,
    seed: int = 1,
) -> Context:
    """A context whose classes have these trusted executors, with its own randomness."""
    by_name: dict[str, TrustedExecutor] = {one.name: one for one in trusted}
    return Context(
        records,
        blobs,
        lambda cls: by_name.get(f"trusted-{cls}"),
        policy,
        clock or SystemClock(),
        Random(seed),
    )


def stock(
    records: Records, blobs: Blobs, cls: Class, workloads: int, seed: int = 1
) -> None:
    """Series of class `cls` and so many answered workloads, without the pipelines."""
    size = TRAITS[cls].prompts
    files = [
        [f"{cls} {seed}/{number}/{place}?" for place in range(size)]
        for number in range(size)
    ]
    names = [blobs.put(io.BytesIO(to_file(prompts))).sha256 for prompts in files]
    records.add_series(cls, names, 1, 10**6)
    ids = [one.id for one in records.series(cls) if one.blob in names]
    for number in range(workloads):
        drawn = Random(f"{seed} {number}").getrandbits(63)
        hidden = [(one, files[place][number % size]) for place, one in enumerate(ids)]
        blob = blobs.put(io.BytesIO(to_file([prompt for _, prompt in hidden]))).sha256
        workload_id = add_workload(records, cls, drawn, blob, hidden)
        records.finish_workload(
            workload_id, {prompt: answer_to(prompt, drawn) for _, prompt in hidden}
        )


def open_records(place: Path | str) -> Records:
    """The records in a database."""
    return Records(Database.open(place))


def read_answers(
    pieces: Iterable[Piece],
    sha256: str,
    prompts: Collection[str],
    limit: int = MOST_BYTES,
) -> dict[str, str]:
    """The answers in a file that arrived in these pieces."""
    file = IncomingFile(limit)
    try:
        for piece in pieces:
            file.add(piece)
        return answers_of(file, sha256, prompts)
    finally:
        file.close()


def add_workload(
    records: Records,
    cls: Class,
    seed: int,
    blob: str,
    hidden: Sequence[HiddenPrompt],
) -> str:
    """Add one workload; returns its id."""
    (workload_id,) = records.add_workloads(cls, [NewWorkload(seed, blob, hidden)])
    return workload_id


def put_executor(records: Records, executor: ExecutorRecord) -> None:
    """Store what is known of an executor, in place of what was."""
    with records.database.writing() as tx:
        tx.execute(executors.delete().where(executors.c.name == executor.name))
        tx.execute(executors.insert().values(**asdict(executor)))
