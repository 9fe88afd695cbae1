"""External queues: a ranking of many offers, many submissions to a slow one, launches at
a cloud that refuses some, and what a provider's modules cost to import.
"""

import asyncio
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

from benchmarks.bench import scaled, timed
from benchmarks.figures import Figure, alternate
from benchmarks.renting import SHAPES, Renting
from benchmarks.throttled_cloud import PER_S, launch_seconds
from gpuyard.config.paths import Home
from gpuyard.config.settings import Settings
from gpuyard.controller.controller import Controller
from gpuyard.domain.attempt_order import AttemptOrder
from gpuyard.domain.gpus import GPU_CLASSES
from gpuyard.domain.jobconfig import JobResult, JobStatus
from gpuyard.domain.offers import Offer, Strategy
from gpuyard.domain.shape import Shape
from gpuyard.ledger.ledger import Ledger
from gpuyard.providers.base import QueueProvider
from gpuyard.scheduler.external_queues import ExternalQueue, ExternalQueueTable
from gpuyard.scheduler.optimiser import Need
from gpuyard.storage.blobs import BlobStore

GROUP = "external-queues"
REPLY_S = 0.05
CONCURRENCY = 16
_SDKS = {
    "docker": "docker",
    "kubernetes": "kubernetes_asyncio, kubernetes_asyncio.client.api_client",
}


def measure(scale: float) -> Iterator[Figure]:
    """Each on its own."""
    yield _ranking(scaled(20, scale, 3), scaled(5000, scale, 50))
    yield _renting(
        scaled(20, scale, 3), scaled(5000, scale, 50), scaled(100, scale, 10)
    )
    yield _submissions(scaled(3, scale), scaled(1000, scale, 50))
    yield _throttled_launches(scaled(1000, scale, 50))
    for provider, sdk in _SDKS.items():
        yield _imports(scaled(9, scale), provider, sdk)


def _ranking(rounds: int, count: int) -> Figure:
    dice = random.Random(7)
    offers = {offer.id: offer for offer in _offers(count, dice)}
    queue = ExternalQueue("cloud", offers=offers)
    table = ExternalQueueTable(by_name={"cloud": queue})
    shape = Shape(gpus=1, gpu_memory_gb=16, spot=True)
    values, floors = alternate(
        rounds,
        lambda: timed(lambda: table.ranked_offers(shape, Need(), Strategy.BALANCED)),
        lambda: timed(
            lambda: sorted(offers.values(), key=lambda o: o.price_per_hour or 0)
        ),
    )
    return Figure(
        GROUP,
        f"{count:,} offers ranked",
        [taken * 1000 for taken in values],
        "ms",
        20,
        [taken * 1000 for taken in floors],
        "the offers sorted by price",
        absolute=True,
    )


def _renting(rounds: int, count: int, decisions: int) -> Figure:
    """What the number of offers adds to a decision, once each shape was ranked."""
    offers = {offer.id: offer for offer in _offers(count, random.Random(7))}
    one = next(offer for offer in offers.values() if not offer.spot)
    many = Renting(offers)
    single = Renting({one.id: one})
    for renting in (many, single):
        for _ in range(SHAPES):
            renting.decision_ms()
    taken, floors = alternate(
        rounds,
        lambda: median(many.decision_ms() for _ in range(decisions)),
        lambda: median(single.decision_ms() for _ in range(decisions)),
    )
    return Figure(
        GROUP,
        f"decision to rent for a job among {count:,} offers, more than among one",
        [mine - bare for mine, bare in zip(taken, floors, strict=True)],
        "ms",
        1,
        floors,
        "the decision with one offer",
        absolute=True,
    )


def _offers(count: int, dice: random.Random) -> Iterator[Offer]:
    kinds = [(kind.value, spec.memory_gb) for kind, spec in GPU_CLASSES.items()]
    for number in range(count):
        gpu, memory = dice.choice(kinds)
        yield Offer(
            f"cloud/{number:05d}",
            "cloud",
            gpu,
            dice.choice((1, 2, 4, 8)),
            memory,
            cpus=64,
            memory_gb=512,
            price_per_hour=Decimal(dice.randrange(20, 4000)) / 100,
            region=f"r{number % 9}",
            spot=number % 3 == 0,
        )


def _throttled_launches(count: int) -> Figure:
    taken, ideal = launch_seconds(count)
    return Figure(
        GROUP,
        f"{count:,} launches at a cloud that takes {PER_S} a second",
        [taken],
        "s",
        1.2,
        [ideal],
        "as many at that rate",
    )


def _submissions(rounds: int, jobs: int) -> Figure:
    values, floors = alternate(
        rounds, lambda: asyncio.run(_submit(jobs)), lambda: asyncio.run(_wait(jobs))
    )
    return Figure(
        GROUP,
        f"{jobs:,} submissions, {CONCURRENCY} at once, to a provider that answers in"
        f" {REPLY_S * 1000:.0f} ms",
        values,
        "s",
        1.3,
        floors,
        "waiting for the answers alone",
    )


async def _wait(jobs: int) -> float:
    """Seconds in which so many answers come, so many at once."""
    places = asyncio.Semaphore(CONCURRENCY)

    async def answer() -> None:
        async with places:
            await asyncio.sleep(REPLY_S)

    began = time.perf_counter()
    await asyncio.gather(*(answer() for _ in range(jobs)))
    return time.perf_counter() - began


class _Slow(QueueProvider):
    """Answers each submission after `REPLY_S`; what it took runs at once and for
    ever.
    """

    PROVIDER_NAME: ClassVar[str] = "slow"
    concurrency = CONCURRENCY
    max_pending = 1_000_000
    poll_s = 1.0

    def __init__(self, expected: int) -> None:
        super().__init__({})
        self.taken: set[str] = set()
        self.expected = expected
        self.complete = asyncio.Event()

    async def submit_attempt(self, order: AttemptOrder) -> str:
        await asyncio.sleep(REPLY_S)
        self.taken.add(order.attempt_id)
        if len(self.taken) == self.expected:
            self.complete.set()
        return order.attempt_id

    async def poll_jobs(self, job_ids: Sequence[str]) -> Mapping[str, JobResult]:
        return {job_id: JobResult(job_id, JobStatus.PENDING) for job_id in job_ids}

    async def offers(self) -> Sequence[Offer]:
        return [Offer("slow/one", "slow", cpus=8, memory_gb=64)]

    async def get_job_status(self, job_id: str) -> JobResult:
        return JobResult(job_id, JobStatus.PENDING)

    async def find_by_attempt(self, attempt_id: str) -> str | None:
        return attempt_id if attempt_id in self.taken else None

    async def stop_job(self, job_id: str, *, checkpoint: bool) -> bool:
        return True

    async def stream_logs(
        self, job_id: str, *, lines: int | None, follow: bool
    ) -> AsyncIterator[bytes]:
        yield b""

    async def health_check(self) -> dict[str, Any]:
        return {"status": "healthy"}


async def _submit(jobs: int) -> float:
    """Seconds from the first submission's request until the provider has answered the
    last.
    """
    provider = _Slow(jobs)

    async def nothing_new(_seconds: float) -> None:
        await asyncio.sleep(3600)

    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        ledger = Ledger.open(home / "ledger.db")
        controller = Controller(
            ledger,
            Settings(),
            lambda _: {"slow": provider},
            BlobStore(home / "blobs"),
            Home(home),
            nothing_new,
        )
        await controller.start()
        try:
            await controller.requests.submit([{"command": ["true"], "name": "first"}])
            began = time.perf_counter()
            await controller.requests.submit(
                [{"command": ["true"], "name": f"job-{n}"} for n in range(jobs - 1)]
            )
            await provider.complete.wait()
            return time.perf_counter() - began
        finally:
            await controller.close()
            ledger.close()


def _imports(rounds: int, provider: str, sdk: str) -> Figure:
    """What each takes beside what a server has loaded before any provider."""
    values, floors = alternate(
        rounds,
        lambda: _import_ms(f"gpuyard.providers.{provider}.provider"),
        lambda: _import_ms(sdk),
    )
    return Figure(
        GROUP,
        f"import of the provider {provider}",
        values,
        "ms",
        1.5,
        floors,
        "its SDK alone",
    )


def _import_ms(modules: str) -> float:
    program = (
        "import gpuyard.config.settings, gpuyard.providers.base\n"
        "import gpuyard.domain.ids, gpuyard.storage.blobs\n"
        "import time\n"
        "began = time.perf_counter()\n"
        f"import {modules}\n"
        "print(time.perf_counter() - began)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    return float(done.stdout) * 1000
