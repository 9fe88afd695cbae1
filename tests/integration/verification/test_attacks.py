"""Attacks on the verdict: what an executor does to pass, or to be blamed for nothing.

The table in docs/verification.md names these tests; each has a solver of its own.
"""

import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from gpuyard.domain.errors import CapacityError, GpuyardError, UnreachableError
from gpuyard.domain.gpus import GPUClass
from gpuyard.storage.blobs import BlobStore
from gpuyard.verification.channels import GoneError
from gpuyard.verification.check import Check
from gpuyard.verification.claims import Expected
from gpuyard.verification.classes import Class
from gpuyard.verification.context import Context
from gpuyard.verification.protocol import (
    Claims,
    Hash,
    Message,
    OrderDocument,
    Ready,
)
from gpuyard.verification.records import Records
from gpuyard.verification.solver.probe import nonce_of
from gpuyard.verification.solver_jobs import NotStartedError
from gpuyard.verification.trust import PRIOR, UNEXPLAINED_BARS
from gpuyard.verification.trusted_executor import ExecutorFault
from gpuyard.verification.verdict import CheckOutcome
from gpuyard.verification.waiting import Obstacle
from tests.support.attesting import ROOT, attestation_of, pem, unreadable_chain
from tests.support.executors import Executors, Honest, executor, make_batch
from tests.support.verification import LocalTrusted, digest_of, make_context, stock

pytestmark = pytest.mark.anyio
T4 = GPUClass.T4
CALIBRATED = Expected(T4.value, products=30, vram_gb=13.6, claims_s=60.0)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """What is judged here does not depend on the database."""
    return tmp_path / "verification" / "verification.db"


@pytest.fixture
def context(records: Records, blobs: BlobStore) -> Context:
    """The class T4 has samples, and a trusted executor with a GPU."""
    stock(records, blobs, T4, workloads=UNEXPLAINED_BARS)
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
    """Has no GPU: sends the digests that `says` invents."""

    def says(self, nonce: str) -> str:
        return hashlib.sha256(nonce.encode()).hexdigest()

    async def rest(self, order: OrderDocument, seed: int) -> AsyncIterator[Message]:
        async for message in super().rest(order, seed):
            yield message
            if isinstance(message, Hash):
                nonce = self.nonce(order, seed, message)
                yield Claims(
                    vram={"gigabytes": 13.6, "digest": self.says(f"vram {nonce}")},
                    speed={"digest": self.says(f"speed {nonce}")},
                )


class OwnsGpu(Liar):
    """Says the same, and has computed the digests."""

    def says(self, nonce: str) -> str:
        return digest_of(nonce)


class ProvesEarly(OwnsGpu):
    """Begins its proofs on other processors with the seed, while its GPU answers."""

    def nonce(self, order: OrderDocument, seed: int, said: Hash) -> str:
        return nonce_of(order["check"], seed, "")


class KeepsItsHash(OwnsGpu):
    """Answers fast, and proves before it sends its hash, in the time that is left."""

    def nonce(self, order: OrderDocument, seed: int, said: Hash) -> str:
        return nonce_of(order["check"], seed, said.sha256)


class WithoutTorch(LocalTrusted):
    """A trusted executor that cannot prove its own memory."""

    async def prove(
        self, cls: Class, nonce: str, proofs: Mapping[str, Any]
    ) -> dict[str, str]:
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
    assert list(unproven(check)) == ["vram_digest", "speed_digest"]
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
    expected = Expected(T4.value, products=30, vram_gb=13.6)
    check = (await check_with(context, tmp_path, expected, owner=OwnsGpu()))["owner"]
    assert check.outcome is CheckOutcome.UNJUDGED, check.lines
    assert set(unproven(check)) == {"claims_s"}
    assert "not calibrated" in check.reason


async def test_each_memory_proof_of_a_batch_is_repeated(
    context: Context, tmp_path: Path
) -> None:
    solvers = {"owner": OwnsGpu(), **{f"liar{n}": Liar() for n in range(5)}}
    checks = await check_with(context, tmp_path, CALIBRATED, **solvers)
    outcomes = {name: check.outcome for name, check in checks.items()}
    assert outcomes.pop("owner") is CheckOutcome.PASSED, checks["owner"].lines
    assert set(outcomes.values()) == {CheckOutcome.FAILED}, "luck helps nobody"


async def test_no_proof_can_begin_before_the_answers_are_fixed(
    context: Context, tmp_path: Path
) -> None:
    solvers = {
        "owner": OwnsGpu(),
        "early": ProvesEarly(),
        "keeps": KeepsItsHash(),
    }
    checks = await check_with(context, tmp_path, CALIBRATED, **solvers)
    assert checks["owner"].outcome is CheckOutcome.PASSED, checks["owner"].lines
    wrong = {
        name: {line.name for line in check.lines if line.ok is False}
        for name, check in checks.items()
    }
    assert wrong["early"] == {"vram_digest", "speed_digest"}
    assert wrong["keeps"] == {"vram_digest", "speed_digest"}


class Attests(Honest):
    """Shows a GPU that attests itself; a chip that several may have."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    async def rest(self, order: OrderDocument, seed: int) -> AsyncIterator[Message]:
        async for message in super().rest(order, seed):
            yield message
            if isinstance(message, Hash):
                yield Claims(inventory=[self.gpu(self.nonce(order, seed, message))])

    def gpu(self, nonce: str) -> dict[str, Any]:
        return {
            "name": "Tesla T4",
            "memory_mb": 15360,
            "uuid": f"GPU-{self._number:08d}-1111-1111-1111-111111111111",
            "driver": "535.104.05",
            "compute_capability": "7.5",
            "attestation": attestation_of(nonce),
        }


class ShowsAnothersPapers(Attests):
    """Has the certificates of a chip, as all who ran a job there, and not the chip."""

    def gpu(self, nonce: str) -> dict[str, Any]:
        gpu = super().gpu(nonce)
        papers = {**gpu["attestation"], "report": attestation_of("00" * 32)["report"]}
        return {**gpu, "attestation": papers}


class ShowsNonsense(Attests):
    """Its certificates break whoever reads them."""

    def gpu(self, nonce: str) -> dict[str, Any]:
        papers = {**attestation_of(nonce), "certificates": unreadable_chain()}
        return {**super().gpu(nonce), "attestation": papers}


ATTESTED = Expected(T4.value, inventory=True, attestation_root=pem(ROOT))


def reasons(checks: Mapping[str, Check]) -> dict[str, str]:
    """Executor → why it failed; empty if it passed."""
    return {name: check.reason for name, check in checks.items()}


async def test_one_chip_vouches_for_one_executor_of_a_batch(
    context: Context, tmp_path: Path
) -> None:
    solvers = {"one": Attests(1), "other": Attests(2)}
    found = reasons(await check_with(context, tmp_path, ATTESTED, **solvers))
    assert "not that of other" in found["one"]
    assert "not that of one" in found["other"]


async def test_the_papers_of_a_chip_harm_nobody_but_who_shows_them(
    context: Context, tmp_path: Path
) -> None:
    solvers = {
        "owner": Attests(1),
        "framer": ShowsAnothersPapers(2),
        "breaker": ShowsNonsense(3),
    }
    found = reasons(await check_with(context, tmp_path, ATTESTED, **solvers))
    assert found["owner"] == ""
    assert "another nonce" in found["framer"]
    assert "cannot be read" in found["breaker"]


async def test_one_chip_vouches_for_no_other_place_within_an_hour(
    context: Context, tmp_path: Path
) -> None:
    """Nor does it fail anybody: who passed first may have rented the chip for that."""
    assert reasons(await check_with(context, tmp_path, ATTESTED, one=Attests(1))) == {
        "one": ""
    }
    wanted: dict[Class, Expected] = {T4: ATTESTED}
    solvers = {"renamed": Attests(1), "elsewhere": Attests(2)}
    for name, places in (("renamed", "local"), ("elsewhere", "rented")):
        opens = Executors(**solvers)
        batch = make_batch(
            context, opens, [T4], tmp_path, wanted, places=lambda _, at=places: at
        )
        (check,) = await batch.run([executor(name, T4)])
        if name == "renamed":
            assert check.outcome is CheckOutcome.PASSED, check.lines
        else:
            assert check.outcome is CheckOutcome.UNJUDGED, check.lines
            assert "with which renamed has not passed just before" in check.reason


class Raises(Honest):
    """Whatever it is asked once its job is there, the instance answers with `error`."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    async def rest(self, order: OrderDocument, seed: int) -> AsyncIterator[Message]:
        raise self.error
        yield Ready()


class TakesNoJob(Raises):
    """Its place answers with `error` before a job is there."""

    async def first(self, order: OrderDocument) -> Message:
        raise self.error


async def outcome_of(
    context: Context, tmp_path: Path, solver: Honest
) -> tuple[CheckOutcome, str]:
    """How a check of this solver ends, and why."""
    plain = Expected(T4.value)
    check = (await check_with(context, tmp_path, plain, rented=solver))["rented"]
    return check.outcome, check.reason


async def test_a_job_whose_output_cannot_be_read_fails(
    context: Context, tmp_path: Path
) -> None:
    """An executor, or its host, makes a folder of the log."""
    broken = GpuyardError("The server answered 500: Is a directory.")
    outcome, reason = await outcome_of(context, tmp_path, Raises(broken))
    assert outcome is CheckOutcome.FAILED
    assert "its job cannot be read: The server answered 500" in reason


async def test_an_instance_that_is_away_blames_nobody(
    context: Context, tmp_path: Path
) -> None:
    away = UnreachableError("No server answers.")
    outcome, _ = await outcome_of(context, tmp_path, Raises(away))
    assert outcome is CheckOutcome.BLAMELESS


async def test_a_place_that_takes_no_job_is_not_blameless(
    context: Context, tmp_path: Path
) -> None:
    """Its host has taken the GPU away, for as long as it would be checked."""
    none = CapacityError("No node will ever have 1 GPU.")
    outcome, reason = await outcome_of(context, tmp_path, TakesNoJob(none))
    assert outcome is CheckOutcome.UNEXPLAINED
    assert "its place takes no job" in reason


@pytest.mark.parametrize(
    ("obstacle", "outcome"),
    [
        (Obstacle.OTHER_JOBS, CheckOutcome.WAITED),
        (Obstacle.OWN_RULE, CheckOutcome.BLAMELESS),
        (Obstacle.UNKNOWN, CheckOutcome.UNEXPLAINED),
    ],
)
async def test_a_job_that_waits_is_explained_only_behind_our_own(
    context: Context, tmp_path: Path, obstacle: Obstacle, outcome: CheckOutcome
) -> None:
    waits = NotStartedError("job_1 has not begun.", obstacle=obstacle)
    found, _ = await outcome_of(context, tmp_path, TakesNoJob(waits))
    assert found is outcome


@pytest.mark.parametrize(
    ("ours", "outcome"), [(True, CheckOutcome.BLAMELESS), (False, CheckOutcome.FAILED)]
)
async def test_a_job_that_we_end_blames_nobody(
    context: Context, tmp_path: Path, ours: bool, outcome: CheckOutcome
) -> None:
    gone = GoneError("job_1 is cancelled.", ours=ours)
    found, _ = await outcome_of(context, tmp_path, Raises(gone))
    assert found is outcome


async def test_nobody_is_always_the_last_to_be_asked(
    context: Context, tmp_path: Path
) -> None:
    """An external queue takes a few jobs at once; whose come last wait for the rest."""
    names = [f"rented{n}" for n in range(20)]
    solvers = Executors()
    batch = make_batch(context, solvers, [T4], tmp_path)
    checks = await batch.run([executor(name, T4) for name in names])
    assert [check.executor.name for check in checks] == names
    assert sorted(solvers.asked) == sorted(names)
    assert solvers.asked != names, "once in 10^18 batches it is"


async def test_a_fault_that_we_did_not_think_of_is_not_blameless(
    context: Context, tmp_path: Path
) -> None:
    outcome, reason = await outcome_of(context, tmp_path, Raises(ZeroDivisionError()))
    assert outcome is CheckOutcome.UNEXPLAINED
    assert "ZeroDivisionError" in reason


class OneWrong(Honest):
    """Makes up one answer, and is lucky: `stock` does not hide the last prompt."""

    def answers(self, prompts: Sequence[str], seed: int) -> Mapping[str, str]:
        return {**super().answers(prompts, seed), prompts[-1]: "made up"}


async def every_prompt_of(
    context: Context, tmp_path: Path, solver: Honest
) -> tuple[CheckOutcome, str]:
    """How a check of this solver ends when every answer is compared."""
    lucky = Executors(rented=solver)
    batch = make_batch(context, lucky, [T4], tmp_path, every_prompt=True)
    (check,) = await batch.run([executor("rented", T4)])
    return check.outcome, check.reason


async def test_one_wrong_answer_is_found_where_every_prompt_is_compared(
    context: Context, tmp_path: Path
) -> None:
    outcome, _ = await outcome_of(context, tmp_path, OneWrong())
    assert outcome is CheckOutcome.PASSED
    outcome, reason = await every_prompt_of(context, tmp_path, OneWrong())
    assert outcome is CheckOutcome.FAILED
    assert "every_prompt: 1 of 60 answers differ from the trusted ones" in reason
    outcome, reason = await every_prompt_of(context, tmp_path, Honest())
    assert outcome is CheckOutcome.PASSED, reason


@pytest.mark.parametrize(
    ("forgets", "words"),
    [(True, "left out 1 of 60"), (False, "contradicts itself")],
)
async def test_where_every_prompt_cannot_be_compared_nobody_passes(
    context: Context, tmp_path: Path, forgets: bool, words: str
) -> None:
    trusted = context.trusted(T4)
    assert isinstance(trusted, LocalTrusted)
    times = count()
    last: list[str] = []

    def forget(prompt: str) -> bool:
        last[:] = last or [prompt]
        return forgets and prompt == last[0]

    trusted.forgets = forget
    if not forgets:
        trusted.says = lambda prompt, seed: f"{next(times)}"
    outcome, reason = await every_prompt_of(context, tmp_path, Honest())
    assert outcome is CheckOutcome.UNJUDGED
    assert words in reason


class Slow(Honest):
    """Right, in the time that a class has to load its model."""

    took_s = 41.0


class SaysSlow(Honest):
    """Right, and honest about the time it took before it said to be ready."""

    says_s = 41.0


@pytest.mark.parametrize("solver", [Slow(), SaysSlow()])
async def test_time_to_load_a_model_is_no_time_to_solve(
    context: Context, tmp_path: Path, solver: Honest
) -> None:
    batch = make_batch(context, Executors(slow=solver), [T4], tmp_path)
    solvers = [executor(name, T4, stream=False) for name in ("slow", "honest")]
    checks = {check.executor.name: check for check in await batch.run(solvers)}
    assert checks["honest"].outcome is CheckOutcome.PASSED, checks["honest"].lines
    wrong = [line.name for line in checks["slow"].lines if line.ok is False]
    assert wrong == ["solving"], checks["slow"].lines


async def test_who_never_starts_ends_in_quarantine(
    context: Context, tmp_path: Path
) -> None:
    barred: list[bool] = []
    for _ in range(UNEXPLAINED_BARS):
        waits = NotStartedError("job_1 has not begun.")
        await outcome_of(context, tmp_path, TakesNoJob(waits))
        record = context.records.executor("rented")
        barred.append(bool(record and record.quarantined_until))
    assert barred == [*[False] * (UNEXPLAINED_BARS - 1), True]
