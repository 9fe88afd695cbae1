"""Engines: a ranking of many offers, many submissions to a slow one, and what a
provider's modules cost to import.
"""

import asyncio
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.bench import scaled, timed
from benchmarks.figures import Figure
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

GROUP = "engines"
REPLY_S = 0.05
CONCURRENCY = 16
_SDKS = {
    "docker": "docker",
    "kubernetes": "kubernetes_asyncio, kubernetes_asyncio.client.api_client",
}


def measure(scale: float) -> Iterator[Figure]:
    """Each on its own."""
    count = scaled(5000, scale, 50)
    taken = [_rank(count, seed) for seed in range(scaled(20, scale, 3))]
    yield Figure(
        GROUP, f"{count:,} offers ranked", statistics.median(taken) * 1000, "ms", 20
    )
    jobs = scaled(1000, scale, 50)
    ideal = jobs * REPLY_S / CONCURRENCY
    name = (
        f"{jobs:,} submissions, {CONCURRENCY} at once, to a provider that answers in"
        f" {REPLY_S * 1000:.0f} ms"
    )
    yield Figure(
        GROUP,
        name,
        asyncio.run(_submit(jobs)),
        "s",
        1.3,
        ideal,
        "waiting for the answers alone",
    )
    for provider, sdk in _SDKS.items():
        ours, theirs = _imports(
            f"gpuyard.providers.{provider}.provider", sdk, scaled(9, scale, 2)
        )
        yield Figure(
            GROUP,
            f"import of the provider {provider}",
            ours * 1000,
            "ms",
            1.5,
            theirs * 1000,
            "its SDK alone",
        )


def _rank(count: int, seed: int) -> float:
    dice = random.Random(seed)
    kinds = [(kind.value, spec.memory_gb) for kind, spec in GPU_CLASSES.items()]
    offers: dict[str, Offer] = {}
    for number in range(count):
        gpu, memory = dice.choice(kinds)
        offer = Offer(
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
        offers[offer.id] = offer
    table = ExternalQueueTable(by_name={"cloud": ExternalQueue("cloud", offers=offers)})
    shape = Shape(gpus=1, gpu_memory_gb=16, spot=True)
    return timed(lambda: table.ranked_offers(shape, Need(), Strategy.BALANCED))


class _Slow(QueueProvider):
    """Answers each submission after `REPLY_S`; what it took runs at once and for
    ever.
    """

    PROVIDER_NAME: ClassVar[str] = "slow"
    concurrency = CONCURRENCY
    max_pending = 1_000_000
    poll_s = 1.0

    def __init__(self) -> None:
        super().__init__({})
        self.taken: list[str] = []

    async def submit_attempt(self, order: AttemptOrder) -> str:
        await asyncio.sleep(REPLY_S)
        self.taken.append(order.attempt_id)
        return self.taken[-1]

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
    provider = _Slow()

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
            while len(provider.taken) < jobs:  # noqa: ASYNC110  nobody tells
                await asyncio.sleep(0.005)
            return time.perf_counter() - began
        finally:
            await controller.close()
            ledger.close()


def _imports(ours: str, theirs: str, times: int) -> tuple[float, float]:
    """Seconds each takes beside what a server has loaded before any provider; they take
    turns.
    """
    loaded = "import gpuyard.providers.base, gpuyard.storage.blobs, gpuyard.domain.ids"
    taken: dict[str, list[float]] = {
        loaded: [],
        f"{loaded}, {ours}": [],
        f"{loaded}, {theirs}": [],
    }
    for _ in range(times):
        for program, found in taken.items():
            found.append(
                timed(
                    lambda p=program: subprocess.run(
                        [sys.executable, "-c", p], check=True
                    )
                )
            )
    bare, mine, sdk = (statistics.median(found) for found in taken.values())
    return mine - bare, sdk - bare
