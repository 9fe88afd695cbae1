"""Executors that say what breaks others: each fails alone, and everybody else is judged
as if it were not there.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gpuyard.domain.gpus import GPUClass
from gpuyard.storage.blobs import BlobStore
from gpuyard.verification import evidence
from gpuyard.verification.claims import Expected
from gpuyard.verification.classes import Class
from gpuyard.verification.context import Context
from gpuyard.verification.protocol import (
    AnswersPiece,
    Claims,
    Hash,
    Message,
    OrderDocument,
)
from gpuyard.verification.records import Records
from gpuyard.verification.settlement import keep_evidence
from gpuyard.verification.verdict import CheckOutcome
from tests.support.executors import Executors, Honest, executor, make_batch
from tests.support.verification import A, B, LocalTrusted, make_context, stock

pytestmark = pytest.mark.anyio


@pytest.fixture
def context(records: Records, blobs: BlobStore) -> Context:
    stock(records, blobs, A, workloads=4)
    return make_context(records, blobs, LocalTrusted(A))


class Raises(Honest):
    """Does what nobody thought of."""

    async def rest(self, order: OrderDocument, seed: int) -> AsyncIterator[Message]:
        yield Hash(sha256="0" * 64, solve_s=0.0)
        raise ZeroDivisionError("nobody thought of it")


async def test_what_nobody_thought_of_fails_alone(context: Context, tmp_path: Path):
    batch = make_batch(context, Executors(odd=Raises()), [A], tmp_path)
    checks = {
        check.executor.name: check
        for check in await batch.run([executor(one, A) for one in ("ok", "odd")])
    }
    assert (checks["ok"].outcome, checks["odd"].outcome) == (
        CheckOutcome.PASSED,
        CheckOutcome.UNEXPLAINED,
    )
    assert "ZeroDivisionError" in checks["odd"].reason


class Verbose(Honest):
    """Answers at such length that its file is as large as may be."""

    def answers(self, prompts: Sequence[str], seed: int) -> Mapping[str, str]:
        return dict.fromkeys(prompts, "x" * 256 * 250)


async def test_there_is_evidence_of_the_longest_answers_too(
    records: Records, blobs: BlobStore, tmp_path: Path
):
    stock(records, blobs, GPUClass.H200, workloads=1)
    context = make_context(records, blobs, LocalTrusted(GPUClass.H200))
    names = {"verbose": CheckOutcome.FAILED, "honest": CheckOutcome.PASSED}
    batch = make_batch(context, Executors(verbose=Verbose()), [GPUClass.H200], tmp_path)
    checks = await batch.run([executor(name, GPUClass.H200) for name in names])
    assert {check.executor.name: check.outcome for check in checks} == names
    assert (
        keep_evidence(tmp_path / "evidence", Ed25519PrivateKey.generate(), checks) == []
    )
    for check in checks:
        told = evidence.check_evidence(tmp_path / "evidence" / f"{check.id}.json")
        assert (told.sound, told.outcome) == (True, check.outcome)


async def test_evidence_that_cannot_be_written_is_told_and_the_rest_is_there(
    context: Context, tmp_path: Path
):
    checks = await make_batch(context, Executors(), [A], tmp_path).run(
        [executor(name, A) for name in ("a", "b", "c")]
    )
    folder = tmp_path / "evidence"
    (folder / f"{checks[0].id}.json").mkdir(parents=True)
    (fault,) = keep_evidence(folder, Ed25519PrivateKey.generate(), checks)
    assert fault.startswith(f"The evidence of {checks[0].id} is not kept: ")
    assert {path.stem for path in folder.iterdir() if path.is_file()} == {
        check.id for check in checks[1:]
    }


class Inventory(Honest):
    """Shows a GPU with this number, asked or not."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def claims(self) -> Claims:
        gpu = {
            "name": "Tesla T4",
            "memory_mb": 15360,
            "uuid": f"GPU-{self._number:08d}-1111-1111-1111-111111111111",
            "driver": "535.104.05",
            "compute_capability": "7.5",
        }
        return Claims(inventory=[gpu])


async def test_claims_that_nobody_asked_for_frame_nobody(
    records: Records, blobs: BlobStore, tmp_path: Path
):
    stock(records, blobs, GPUClass.T4, workloads=1)
    stock(records, blobs, B, workloads=1)
    context = make_context(records, blobs, LocalTrusted(GPUClass.T4), LocalTrusted(B))
    expected: dict[Class, Expected] = {
        GPUClass.T4: Expected(GPUClass.T4.value, inventory=True)
    }
    opens = Executors(owner=Inventory(1), framer=Inventory(1))
    batch = make_batch(context, opens, [GPUClass.T4, B], tmp_path, expected)
    checks = await batch.run([executor("owner", GPUClass.T4), executor("framer", B)])
    assert {check.executor.name: check.outcome for check in checks} == dict.fromkeys(
        ("owner", "framer"), "passed"
    )


async def test_of_claims_only_those_are_kept_that_were_asked_for(
    records: Records, blobs: BlobStore, tmp_path: Path
):
    stock(records, blobs, GPUClass.T4, workloads=1)
    context = make_context(records, blobs, LocalTrusted(GPUClass.T4))
    expected: dict[Class, Expected] = {
        GPUClass.T4: Expected(GPUClass.T4.value, products=1)
    }
    opens = Executors(talks=Inventory(1))
    (check,) = await make_batch(context, opens, [GPUClass.T4], tmp_path, expected).run(
        [executor("talks", GPUClass.T4)]
    )
    assert check.claims == {"speed": None}
    assert check.outcome is CheckOutcome.FAILED, "what was asked for is missing"


class HashAndNothing(Honest):
    """Commits itself to a file, and never sends it."""

    async def rest(self, order: OrderDocument, seed: int) -> AsyncIterator[Message]:
        yield Hash(sha256=hashlib.sha256(b"").hexdigest(), solve_s=0.0)
        await asyncio.Event().wait()


class Heard(Honest):
    """Tells when all that it had to say was heard."""

    def __init__(self) -> None:
        super().__init__()
        self.out = asyncio.Event()

    async def rest(self, order: OrderDocument, seed: int) -> AsyncIterator[Message]:
        async for message in super().rest(order, seed):
            if isinstance(message, AnswersPiece):
                self.out.set()
            yield message


async def test_files_that_never_come_hold_nobody_up(context: Context, tmp_path: Path):
    honest = Heard()
    mute = {f"mute{number}": HashAndNothing() for number in range(40)}
    running = asyncio.create_task(
        make_batch(context, Executors(honest=honest, **mute), [A], tmp_path).run(
            [executor(name, A) for name in (*mute, "honest")]
        )
    )
    async with asyncio.timeout(60):
        await honest.out.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_answers_that_we_cannot_keep_are_no_fault_of_the_executor(
    context: Context, tmp_path: Path
):
    folder = tmp_path / "removed"
    batch = make_batch(context, Executors(honest=Honest()), [A], folder)
    (check,) = await batch.run([executor("honest", A)])
    assert check.outcome is CheckOutcome.BLAMELESS
    assert check.fault is not None
    assert "No such file or directory" in check.fault
