"""Attacks on the verdict: what an executor does to pass, or to be blamed for nothing.

The table in docs/verification.md names these tests; each has a solver of its own.
"""

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpuyard.domain.gpus import GPUClass
from gpuyard.storage.blobs import BlobStore
from gpuyard.verification.check import Check
from gpuyard.verification.claims import Expected, FigureRange
from gpuyard.verification.classes import Class
from gpuyard.verification.context import Context
from gpuyard.verification.protocol import Claims, Hash, Message, OrderDocument
from gpuyard.verification.records import Records
from gpuyard.verification.solver.probe import nonce_of
from gpuyard.verification.trust import PRIOR
from gpuyard.verification.trusted_executor import ExecutorFault
from gpuyard.verification.verdict import CheckOutcome
from tests.support.executors import Executors, Honest, executor, make_batch
from tests.support.verification import LocalTrusted, digest_of, make_context, stock

pytestmark = pytest.mark.anyio
T4 = GPUClass.T4
RANGES = {"tflops": FigureRange(20, 30), "bandwidth_gbs": FigureRange(200, 300)}
CALIBRATED = Expected(T4.value, speed=True, vram_gb=13.6, claims_s=60.0, ranges=RANGES)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """What is judged here does not depend on the database."""
    return tmp_path / "verification" / "verification.db"


@pytest.fixture
def context(records: Records, blobs: BlobStore) -> Context:
    """The class T4 has samples, and a trusted executor with a GPU."""
    stock(records, blobs, T4, workloads=1)
    return make_context(records, blobs, LocalTrusted(T4))


async def check_with(
    context: Context, tmp_path: Path, expected: Expected, **solvers: Honest
) -> dict[str, Check]:
    """The checks of a batch of these solvers, by name."""
    wanted: dict[Class, Expected] = {T4: expected}
    batch = make_batch(context, Executors(**solvers), [T4], tmp_path, wanted)
    checks = await batch.run([executor(name, T4) for name in solvers])
    return {check.executor.name: check for check in checks}


class Liar(Honest):
    """Has no GPU: sends the figures of its class and the digest `says`."""

    def says(self, nonce: str) -> str:
        return hashlib.sha256(nonce.encode()).hexdigest()

    async def rest(self, order: OrderDocument, seed: int) -> AsyncIterator[Message]:
        digest = self.says(nonce_of(order["check"], seed))
        async for message in super().rest(order, seed):
            yield message
            if isinstance(message, Hash):
                yield Claims(
                    vram={"gigabytes": 13.6, "digest": digest},
                    speed={"tflops": 24.0, "bandwidth_gbs": 240.0},
                )


class OwnsGpu(Liar):
    """Says the same, and has computed the digest."""

    def says(self, nonce: str) -> str:
        return digest_of(nonce)


class WithoutTorch(LocalTrusted):
    """A trusted executor that cannot prove its own memory."""

    async def prove_memory(self, cls: Class, nonce: str, gigabytes: float) -> str:
        raise ExecutorFault("trusted cannot prove its own memory: no torch")


def unproven(check: Check) -> dict[str, str]:
    """What could not be judged, and why."""
    return {line.name: line.reason for line in check.lines if line.ok is None}


async def test_a_liar_gains_nothing_where_the_trusted_side_cannot_judge(
    records: Records, blobs: BlobStore, tmp_path: Path
) -> None:
    stock(records, blobs, T4, workloads=1)
    context = make_context(records, blobs, WithoutTorch(T4))
    check = (await check_with(context, tmp_path, CALIBRATED, liar=Liar()))["liar"]
    assert check.outcome is CheckOutcome.UNJUDGED, check.lines
    assert list(unproven(check)) == ["vram_digest"]
    assert "no torch" in check.reason
    record = records.executor("liar")
    assert record and (record.alpha, record.beta) == PRIOR, "no trust is raised"


async def test_a_liar_gains_nothing_where_nobody_is_trusted(
    records: Records, blobs: BlobStore, tmp_path: Path
) -> None:
    stock(records, blobs, T4, workloads=1)
    context = make_context(records, blobs)
    check = (await check_with(context, tmp_path, CALIBRATED, liar=Liar()))["liar"]
    assert check.outcome is CheckOutcome.UNJUDGED, check.lines
    assert "no executor of the class t4 is trusted" in check.reason


async def test_claims_of_a_class_without_a_calibration_pass_nobody(
    context: Context, tmp_path: Path
) -> None:
    expected = Expected(T4.value, speed=True, vram_gb=13.6)
    check = (await check_with(context, tmp_path, expected, owner=OwnsGpu()))["owner"]
    assert check.outcome is CheckOutcome.UNJUDGED, check.lines
    assert set(unproven(check)) == {"tflops", "bandwidth_gbs", "claims_s"}
    assert "not calibrated" in check.reason


async def test_each_memory_proof_of_a_batch_is_repeated(
    context: Context, tmp_path: Path
) -> None:
    solvers = {"owner": OwnsGpu(), **{f"liar{n}": Liar() for n in range(5)}}
    checks = await check_with(context, tmp_path, CALIBRATED, **solvers)
    outcomes = {name: check.outcome for name, check in checks.items()}
    assert outcomes.pop("owner") is CheckOutcome.PASSED, checks["owner"].lines
    assert set(outcomes.values()) == {CheckOutcome.FAILED}, "luck helps nobody"
