"""Batches whose executors are of another version than the trusted one."""

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from gpuyard.storage.blobs import BlobStore
from gpuyard.verification import tolerant_check
from gpuyard.verification.batch import BatchSetup, ClassTerms, VerificationBatch
from gpuyard.verification.check import Check
from gpuyard.verification.claims import Expected
from gpuyard.verification.classes import TRAITS, Class
from gpuyard.verification.context import Context
from gpuyard.verification.protocol import (
    AnswersPiece,
    FingerprintsPiece,
    Hash,
    Message,
    OrderDocument,
    Ready,
)
from gpuyard.verification.records import Records
from gpuyard.verification.solver.messages import pieces
from gpuyard.verification.tolerance_limits import limits_from, ranges_of
from gpuyard.verification.trusted_changes import accept, silence_of, unchanged
from gpuyard.verification.trusted_executor import (
    ExecutorFault,
    FollowedAnswers,
    TrustedAway,
)
from gpuyard.verification.verdict import CheckOutcome
from tests.support.executors import (
    Executors,
    Honest,
    executor,
    keep_nothing,
    make_batch,
    tell_nobody,
)
from tests.support.fingerprints import (
    OTHER_VERSION,
    PrintedFile,
    differences,
    follow,
    sha256,
)
from tests.support.verification import B as CLASS
from tests.support.verification import LocalTrusted, make_context, stock

pytestmark = pytest.mark.anyio
LIMITS = limits_from(
    [
        differences(PrintedFile([f"{n}?" for n in range(6)], seed, OTHER_VERSION))
        for seed in range(20)
    ]
)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """What is judged here does not depend on the database."""
    return tmp_path / "verification" / "verification.db"


class MockTrusted(LocalTrusted):
    """Follows tokens with the mock engine. `wavers`: differently each time. `rounds`:
    differently by rounding, as a GPU whose kernels are not deterministic. `faults`:
    what comes instead of each, the first one first; the last one stays. `broken`: so
    often it does not answer prompts, either.
    """

    wavers = rounds = False

    def __init__(self, cls: Class) -> None:
        super().__init__(cls)
        self.runtime = {"engine": "mock"}
        self.followed = 0
        self.faults: list[Exception | None] = [None]
        self.broken = 0

    async def solve(
        self, cls: Class, prompts: Sequence[str], seed: int
    ) -> dict[str, str]:
        if self.broken:
            self.broken -= 1
            raise ExecutorFault("is broken")
        return await super().solve(cls, prompts, seed)

    async def follow(
        self, cls: Class, prompts: Sequence[str], seed: int, tokens: str
    ) -> FollowedAnswers:
        self.followed += 1
        (fault, *later) = self.faults
        self.faults = later or self.faults
        if fault:
            raise fault
        engine = {"version": f"{self.followed}", "rounding": 0.001}
        found = follow(prompts, seed, tokens, engine if self.rounds else None)
        if self.wavers:
            return FollowedAnswers({**found.texts, "one": f"{self.followed}"}, b"")
        return found


class OtherVersion(Honest):
    """Answers with this engine, and says that it is of another version."""

    engine: ClassVar[Mapping[str, Any]] = OTHER_VERSION
    runtime: ClassVar[Mapping[str, str]] = {"engine": "mock 2"}

    async def first(self, order: OrderDocument) -> Message:
        self.orders.append(order)
        return Ready(runtime=dict(self.runtime))

    async def rest(self, order: OrderDocument, seed: int) -> AsyncIterator[Message]:
        file = PrintedFile(order["prompts"], seed, dict(self.engine))
        said = sha256(file.prints) if order["fingerprints"] else None
        yield Hash(sha256=sha256(file.texts), fingerprints=said, solve_s=0.0)
        if said:
            for piece in pieces("fingerprints", file.prints, 1 << 10):
                yield FingerprintsPiece.model_validate(piece)
        for piece in pieces("answers", file.texts, 1 << 10):
            yield AnswersPiece.model_validate(piece)


class SmallerModel(OtherVersion):
    engine: ClassVar = {**OTHER_VERSION, "model": "small"}


class SendsNoFingerprints(OtherVersion):
    """Commits to fingerprints, and leaves them out."""

    async def rest(self, order: OrderDocument, seed: int) -> AsyncIterator[Message]:
        async for message in super().rest(order, seed):
            if not isinstance(message, FingerprintsPiece):
                yield message


class SameVersion(OtherVersion):
    """Says that it is of the same version, and answers as the other does."""

    runtime: ClassVar = {"engine": "mock"}


def tolerant_batch(
    context: Context, folder: Path, **solvers: Honest
) -> VerificationBatch:
    """A batch whose class allows tolerance."""
    deadline_s = TRAITS[CLASS].solve_s
    terms = ClassTerms(deadline_s, Expected(CLASS.value), limits=LIMITS)

    async def excuse_nobody(check: Check) -> None:
        """There are no receipts."""

    return VerificationBatch(
        BatchSetup(
            context,
            Executors(**solvers),
            "test",
            {CLASS: terms},
            excuse_nobody,
            folder,
            keep_nothing,
            tell_nobody,
        )
    )


@pytest.fixture
def trusted() -> MockTrusted:
    return MockTrusted(CLASS)


@pytest.fixture
def context(records: Records, blobs: BlobStore, trusted: MockTrusted) -> Context:
    """The class has samples, answered by a trusted executor of the first version."""
    stock(records, blobs, CLASS, workloads=1)
    records.note_runtime(CLASS, {"engine": "mock"})
    return make_context(records, blobs, trusted)


async def checks_of(
    batch: VerificationBatch, *names: str
) -> dict[str, tuple[CheckOutcome, str]]:
    checks = await batch.run([executor(name, CLASS) for name in names])
    return {check.executor.name: (check.outcome, check.reason) for check in checks}


async def test_fingerprints_are_compared_where_versions_differ(
    context: Context, tmp_path: Path, trusted: MockTrusted
) -> None:
    solvers = {
        "honest": OtherVersion(),
        "small": SmallerModel(),
        "silent": SendsNoFingerprints(),
        "same": SameVersion(),
    }
    batch = tolerant_batch(context, tmp_path, **solvers)
    found = await checks_of(batch, *solvers)
    assert found["honest"] == (CheckOutcome.PASSED, ""), found
    assert found["small"][0] is CheckOutcome.FAILED
    assert "6 of 6 answers differ by more than rounding" in found["small"][1]
    assert found["silent"][0] is CheckOutcome.FAILED
    assert "a hash of fingerprints came, and none followed" in found["silent"][1]
    assert found["same"][0] is CheckOutcome.FAILED
    assert "differs from the trusted one at character" in found["same"][1]
    # The honest one once, and the one with the smaller model once more before it is
    # blamed.
    assert trusted.followed == 3
    order = solvers["honest"].orders[0]
    assert order["fingerprints"]


@pytest.fixture
def _in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tolerant_check, "PAUSE_S", 0.0)


async def test_a_trusted_executor_that_wavers_when_it_follows_blames_nobody(
    context: Context, tmp_path: Path, trusted: MockTrusted
) -> None:
    trusted.wavers = True
    batch = tolerant_batch(context, tmp_path, honest=OtherVersion())
    outcome, reason = (await checks_of(batch, "honest"))["honest"]
    assert outcome is CheckOutcome.BLAMELESS, reason
    assert "its fingerprints could not be compared" in reason


AWAY = TrustedAway("its node is offline")
BUSY = TrustedAway("job_1 has not begun, behind job_2", busy=True)
STOPPED = ExecutorFault("its job ended")


@pytest.mark.usefixtures("_in_no_time")
@pytest.mark.parametrize(
    ("faults", "dead", "expected", "asked"),
    [
        # It is away, and asked again; but not once more for each check of the batch.
        ([AWAY], False, CheckOutcome.BLAMELESS, tolerant_check.TRIES),
        ([AWAY, None], False, CheckOutcome.PASSED, 3),
        ([BUSY], False, CheckOutcome.BLAMELESS, tolerant_check.TRIES),
        # It breaks whatever it is asked.
        ([STOPPED], True, CheckOutcome.BLAMELESS, 1),
        # These tokens stop it, and its own workload does not.
        ([STOPPED], False, CheckOutcome.UNEXPLAINED, 2),
    ],
)
async def test_a_trusted_executor_that_does_not_follow_is_our_fault_if_it_is_away(
    context: Context,
    tmp_path: Path,
    trusted: MockTrusted,
    faults: list[Exception | None],
    dead: bool,
    expected: CheckOutcome,
    asked: int,
) -> None:
    """But who chooses tokens that stop it must not turn a failure into nothing."""
    trusted.faults = faults
    trusted.dead = dead
    solvers = {"one": OtherVersion(), "other": OtherVersion()}
    found = await checks_of(tolerant_batch(context, tmp_path, **solvers), *solvers)
    assert {outcome for outcome, _ in found.values()} == {expected}, found
    assert trusted.followed == asked


@pytest.mark.usefixtures("_in_no_time")
async def test_tokens_that_break_a_trusted_executor_for_a_while_are_no_excuse(
    context: Context, tmp_path: Path, trusted: MockTrusted
) -> None:
    """It answers nothing after them, and then it does until they come again."""
    trusted.faults = [STOPPED]
    trusted.broken = 1
    batch = tolerant_batch(context, tmp_path, liar=OtherVersion())
    outcome, reason = (await checks_of(batch, "liar"))["liar"]
    assert outcome is CheckOutcome.UNEXPLAINED, reason


@pytest.mark.usefixtures("_in_no_time")
async def test_who_differs_is_not_excused_by_a_trusted_executor_that_goes_away(
    context: Context, tmp_path: Path, trusted: MockTrusted
) -> None:
    trusted.faults = [None, AWAY]
    batch = tolerant_batch(context, tmp_path, small=SmallerModel())
    outcome, reason = (await checks_of(batch, "small"))["small"]
    assert outcome is CheckOutcome.UNEXPLAINED, reason
    assert "they differ, and not once more: its node is offline" in reason


@pytest.mark.usefixtures("_in_no_time")
async def test_people_are_told_of_a_trusted_executor_that_does_not_answer(
    context: Context, tmp_path: Path, trusted: MockTrusted, records: Records
) -> None:
    trusted.faults = [*[BUSY] * tolerant_check.TRIES, None]
    batch = tolerant_batch(context, tmp_path, rented=OtherVersion())
    await checks_of(batch, "rented")
    told = silence_of(records, CLASS, trusted.name)
    assert f"{trusted.name} was asked 3 times in a row since " in told
    assert "behind job_2" in told
    stock(records, context.blobs, CLASS, workloads=1, seed=2)
    batch = tolerant_batch(context, tmp_path, rented=OtherVersion())
    assert await checks_of(batch, "rented") == {"rented": (CheckOutcome.PASSED, "")}
    assert not silence_of(records, CLASS, trusted.name)


async def test_a_trusted_gpu_that_rounds_differently_each_time_is_no_amnesty(
    context: Context, tmp_path: Path, trusted: MockTrusted
) -> None:
    trusted.rounds = True
    solvers = {"honest": OtherVersion(), "small": SmallerModel()}
    found = await checks_of(tolerant_batch(context, tmp_path, **solvers), *solvers)
    assert found["honest"] == (CheckOutcome.PASSED, ""), found
    assert found["small"][0] is CheckOutcome.FAILED
    assert trusted.followed == 3


async def test_a_trusted_executor_that_was_upgraded_alone_is_noticed_and_blames_nobody(
    context: Context,
    tmp_path: Path,
    trusted: MockTrusted,
    records: Records,
    blobs: BlobStore,
) -> None:
    trusted.runtime = {"engine": "mock 3"}
    batch = make_batch(context, Executors(liar=SameVersion()), [CLASS], tmp_path)
    outcome, reason = (await checks_of(batch, "liar"))["liar"]
    assert outcome is CheckOutcome.BLAMELESS
    assert "its engine was 'mock' when it was accepted and is 'mock 3' now" in reason
    asked = [executor("liar", CLASS)]
    left, changed = await unchanged(context, asked)
    assert left == []
    assert f"calibrate --class {CLASS} --trusted {trusted.name}" in changed[CLASS]
    stock(records, blobs, CLASS, workloads=1, seed=2)
    records.put_ranges(CLASS, ranges_of(LIMITS))
    await accept(context, CLASS, trusted.runtime)
    assert await unchanged(context, asked) == (asked, {})
    # What the other engine answered and what was measured with it holds no more.
    assert (records.samples_ready(CLASS), records.ranges(CLASS)) == (0, {})


@pytest.mark.parametrize("tolerant", [False, True])
async def test_all_that_were_upgraded_together_are_no_other_engines(
    context: Context, tmp_path: Path, trusted: MockTrusted, tolerant: bool
) -> None:
    """The answers that are ready are older, and so is what is known of the engine."""
    trusted.runtime = {"engine": "mock 2"}
    trusted.says = lambda prompt, seed: f"{prompt} {seed}"
    names = ("one", "other")
    solvers = {name: OtherVersion() for name in names}
    batch = (
        tolerant_batch(context, tmp_path, **solvers)
        if tolerant
        else make_batch(context, Executors(**solvers), [CLASS], tmp_path)
    )
    found = await checks_of(batch, *names)
    for outcome, reason in found.values():
        assert outcome is CheckOutcome.BLAMELESS, reason
        assert "the trusted executor itself says something else now" in reason
    left, _ = await unchanged(context, [executor("one", CLASS)])
    assert left == [], "until a person has calibrated the class again"


class HonestVersion(Honest):
    """Answers as everybody honest does, and says of what version its engine is."""

    async def first(self, order: OrderDocument) -> Message:
        return Ready(runtime={"engine": "mock"})


async def test_a_trusted_executor_that_was_upgraded_alone_fails_no_prompt(
    context: Context, tmp_path: Path, trusted: MockTrusted
) -> None:
    """Its older answers are those of the executor, and its new ones are not."""
    trusted.runtime = {"engine": "mock 3"}
    trusted.says = lambda prompt, seed: f"{prompt} {seed}"
    solvers = Executors(honest=HonestVersion())
    batch = make_batch(context, solvers, [CLASS], tmp_path, every_prompt=True)
    outcome, reason = (await checks_of(batch, "honest"))["honest"]
    assert outcome is CheckOutcome.BLAMELESS, reason
    assert "is 'mock 3' now" in reason
    left, _ = await unchanged(context, [executor("honest", CLASS)])
    assert left == []


async def test_without_tolerance_another_version_is_not_judged_and_told_what_to_set(
    context: Context, tmp_path: Path, trusted: MockTrusted
) -> None:
    solver = OtherVersion()
    batch = make_batch(context, Executors(honest=solver), [CLASS], tmp_path)
    outcome, reason = (await checks_of(batch, "honest"))["honest"]
    assert outcome is CheckOutcome.OTHER_ENGINE
    assert "its engine is 'mock 2'" in reason
    assert trusted.followed == 0
    assert not solver.orders[0]["fingerprints"]
