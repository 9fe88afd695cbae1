"""Batches over executors in this process: honest ones pass, and cheaters gain
nothing.
"""

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gpuyard.domain.gpus import GPUClass
from gpuyard.storage.blobs import BlobStore
from gpuyard.verification import clock, keys, receipts
from gpuyard.verification.check import Check
from gpuyard.verification.claims import Expected
from gpuyard.verification.classes import Class
from gpuyard.verification.clock import steady_now
from gpuyard.verification.context import (
    Context,
    LeaseBusy,
    when_trusted_is_free,
    with_trusted,
)
from gpuyard.verification.protocol import (
    AnswersPiece,
    Claims,
    Declined,
    Hash,
    Message,
    OrderDocument,
    Ready,
    parse,
)
from gpuyard.verification.records import Records
from gpuyard.verification.records.events import EventSubtype, PipelineEventKind
from gpuyard.verification.settlement import keep_evidence
from gpuyard.verification.solver.messages import pieces
from gpuyard.verification.trusted_executor import LONGEST_TASK_S
from gpuyard.verification.verdict import CheckOutcome
from tests.support.detection import catches
from tests.support.executors import Executors, Honest, executor, make_batch
from tests.support.verification import (
    A,
    B,
    HandClock,
    LocalTrusted,
    digest_of,
    make_context,
    stock,
)
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture
def context(records: Records, blobs: BlobStore) -> Context:
    """Both classes have samples, and a trusted executor that answers as everybody
    honest does.
    """
    stock(records, blobs, A, workloads=3)
    stock(records, blobs, B, workloads=3)
    return make_context(records, blobs, LocalTrusted(A), LocalTrusted(B))


async def verdicts(
    context: Context, tmp_path: Path, *names: str, cls: Class = A, **cheaters: Honest
) -> dict[str, tuple[CheckOutcome, str]]:
    """What a batch makes of these executors."""
    batch = make_batch(context, Executors(**cheaters), [cls], tmp_path)
    checks = await batch.run([executor(name, cls) for name in names or cheaters])
    return {check.executor.name: (check.outcome, check.reason) for check in checks}


@pytest.mark.both_databases
async def test_honest_executors_of_all_classes_pass_and_no_sample_is_used_twice(
    context: Context, tmp_path: Path
):
    batch = make_batch(context, Executors(), [A, B], tmp_path)
    executors = [executor(f"a{n}", A) for n in range(14)] + [
        executor(f"b{n}", B) for n in range(5)
    ]
    checks = await batch.run(executors)
    assert {check.executor.name for check in checks} == {one.name for one in executors}
    assert {check.outcome for check in checks} == {CheckOutcome.PASSED}
    assert len({check.taken.sample_id for check in checks}) == len(checks)
    row = context.records.batch(batch.id)
    assert row and row["outcome"] == "done"
    assert {one.name for one in context.records.executors()} == {
        one.name for one in executors
    }


async def test_a_class_that_is_short_of_samples_is_left_out_alone(
    context: Context, tmp_path: Path
):
    checks = await make_batch(context, Executors(), [A, B], tmp_path).run(
        [executor(f"a{n}", A) for n in range(40)] + [executor("b", B)]
    )
    assert [
        check.executor.name for check in checks if check.executor.gpu_class is B
    ] == ["b"]
    assert len(checks) == 37, "three workloads of twelve, and b's"
    (event,) = [
        one for one in context.records.events() if one.kind == PipelineEventKind.BATCH
    ]
    assert (event.subtype, event.gpu_class) == (EventSubtype.INSUFFICIENT_PROMPTS, A)


class Replays(Honest):
    """Sends the answers of the time before."""

    last: bytes = b""

    def file(self, order: OrderDocument, seed: int) -> bytes:
        mine = self.last
        self.last = super().file(order, seed)
        return mine or self.last


class OnlySeen(Honest):
    """Knows every prompt that was ever asked, and its answer of that time."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, str] = {}

    def answers(self, prompts: Sequence[str], seed: int) -> Mapping[str, str]:
        mine = {prompt: self.seen.get(prompt, "what do I know") for prompt in prompts}
        self.seen |= super().answers(prompts, seed)
        return mine


class SmallerModel(Honest):
    """Has a smaller model answer."""

    def answers(self, prompts: Sequence[str], seed: int) -> Mapping[str, str]:
        return {
            prompt: answer[:8]
            for prompt, answer in super().answers(prompts, seed).items()
        }


class Late(Honest):
    """Right, and too slow."""

    took_s = 11.0


class Declines(Honest):
    """Would rather not, whenever it cannot."""

    def __init__(self, *excuses: dict[str, object]) -> None:
        super().__init__()
        self.excuses = list(excuses)

    async def first(self, order: OrderDocument) -> Message:
        return Declined(reason="busy", receipts=self.excuses)


class Silent(Honest):
    """Leaves when it hears the seed."""

    async def rest(self, order: OrderDocument, seed: int) -> AsyncIterator[Message]:
        return
        yield Ready()


class HashOfSomethingElse(Honest):
    """Commits itself to nothing, and then looks for the answers."""

    async def rest(self, order: OrderDocument, seed: int) -> AsyncIterator[Message]:
        yield Hash(sha256=hashlib.sha256(b"later").hexdigest(), solve_s=0.0)
        for piece in pieces("answers", self.file(order, seed), 1 << 16):
            yield AnswersPiece.model_validate(piece)


class AsAList(Honest):
    """Answers in order, and not by prompt."""

    def file(self, order: OrderDocument, seed: int) -> bytes:
        return json.dumps(
            list(super().answers(order["prompts"], seed).values())
        ).encode()


class Twice(Honest):
    """Changes its mind."""

    async def rest(self, order: OrderDocument, seed: int) -> AsyncIterator[Message]:
        async for message in super().rest(order, seed):
            yield message
            if isinstance(message, Hash):
                yield message


class Says(Honest):
    """Says this at its end, claims as soon as they are due."""

    def __init__(self, line: bytes) -> None:
        super().__init__()
        self._line = line

    async def rest(self, order: OrderDocument, seed: int) -> AsyncIterator[Message]:
        if b"claims" in self._line:
            yield Hash(sha256="0" * 64, solve_s=0.0)
        yield parse(self._line)


@pytest.mark.parametrize(
    "line",
    [
        b'{"type": "failed", "reason": "no\\u0000 words\\n\\u001b[2J"}',
        b'{"type": "failed", "reason": "", "no\\u0000 such\\nfield": 1}',
        b'{"type": "no\\u0000 such\\nword"}',
        b'{"type": "claims", "vram": {"digest": "no\\u0000 digest"}}',
        b'{"type": "claims", "vram": {"fill_s": NaN}}',
        b'{"type": "claims", "inventory": [{"memory_mb": [1e999]}]}',
    ],
)
@pytest.mark.both_databases
async def test_nothing_that_is_said_keeps_a_verdict_from_being_written_down(
    context: Context, tmp_path: Path, line: bytes
):
    batch = make_batch(context, Executors(cheater=Says(line)), [A], tmp_path)
    checks = await batch.run([executor("honest", A), executor("cheater", A)])
    assert {check.executor.name: check.outcome for check in checks} == {
        "honest": CheckOutcome.PASSED,
        "cheater": CheckOutcome.FAILED,
    }
    assert (
        keep_evidence(tmp_path / "evidence", Ed25519PrivateKey.generate(), checks) == []
    )
    assert {path.stem for path in (tmp_path / "evidence").iterdir()} == {
        check.id for check in checks
    }
    reasons = [row["reason"] for row in context.records.checks_of(batch.id)]
    assert all(reason.isprintable() for reason in reasons), (
        "the instance takes nothing else, and the cheater would stay unpunished"
    )
    record = context.records.executor("cheater")
    assert record and record.quarantined_until


@pytest.mark.parametrize(
    ("cheater", "words"),
    [
        (OnlySeen, "differs"),
        (SmallerModel, "differs"),
        (Late, "took 11"),
        (Declines, "declined"),
        (Silent, "left"),
        (HashOfSomethingElse, "was said"),
        (AsAList, "no map"),
        (Twice, "hash"),
    ],
)
async def test_cheaters_are_caught_and_nobody_else(
    context: Context, tmp_path: Path, cheater: type[Honest], words: str
):
    found = await verdicts(context, tmp_path, "honest", "cheater", cheater=cheater())
    assert found["honest"] == (CheckOutcome.PASSED, "")
    outcome, reason = found["cheater"]
    assert outcome is CheckOutcome.FAILED
    assert words in reason
    record = context.records.executor("cheater")
    assert (
        record
        and record.quarantined_until
        and record.quarantined_until > steady_now() + 3 * 3600
    )


async def test_answers_of_before_are_no_answers_now(context: Context, tmp_path: Path):
    cheater = Replays()
    assert (await verdicts(context, tmp_path, cheater=cheater))["cheater"][
        0
    ] is CheckOutcome.PASSED
    outcome, reason = (await verdicts(context, tmp_path, cheater=cheater))["cheater"]
    assert outcome is CheckOutcome.FAILED
    assert "differs" in reason


async def test_an_order_tells_neither_the_seed_nor_which_prompt_is_hidden(
    context: Context, tmp_path: Path
):
    honest = Honest()
    (check,) = await make_batch(context, Executors(honest=honest), [A], tmp_path).run(
        [executor("honest", A)]
    )
    (order,) = honest.orders
    text = json.dumps(order)
    assert str(check.taken.seed) not in text
    assert check.taken.answer not in text
    assert text.count(check.taken.hidden) == 1
    assert tuple(order["prompts"]) == check.taken.series


class SomeWrong(Honest):
    """Makes up one answer in three."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self._random = random

    def answers(self, prompts: Sequence[str], seed: int) -> Mapping[str, str]:
        right = super().answers(prompts, seed)
        return right | dict.fromkeys(
            self._random.sample(list(prompts), len(prompts) // 3), "made up"
        )


async def test_the_catch_rate_is_the_theorys(
    records: Records, blobs: BlobStore, tmp_path: Path
):
    batches = 240
    random = Random(7)
    caught = 0
    stock(records, blobs, A, workloads=batches // 12)
    context = make_context(records, blobs, LocalTrusted(A))
    # A batch binds whole workloads, so that twelve cheaters in one batch are as many
    # batches of one.
    for _ in range(batches // 12):
        names = [f"c{number}" for number in range(12)]
        found = await verdicts(
            context, tmp_path, **{name: SomeWrong(random) for name in names}
        )
        caught += sum(outcome is CheckOutcome.FAILED for outcome, _ in found.values())
    low, high = catches(1 / 3, batches)
    assert low <= caught <= high


async def test_a_trusted_executor_that_wavers_blames_nobody(
    context: Context, tmp_path: Path
):
    trusted = context.trusted(A)
    assert isinstance(trusted, LocalTrusted)
    trusted.forgets = lambda prompt: True
    outcome, reason = (await verdicts(context, tmp_path, cheater=SmallerModel()))[
        "cheater"
    ]
    assert outcome is CheckOutcome.BLAMELESS
    assert "itself says something else" in reason
    trusted.dead = True
    outcome, reason = (await verdicts(context, tmp_path, cheater=SmallerModel()))[
        "cheater"
    ]
    assert outcome is CheckOutcome.UNEXPLAINED, "its answer differs all the same"
    assert "could not be asked again" in reason


async def test_a_failure_stays_one_though_the_trusted_executor_is_busy_for_long(
    records: Records, blobs: BlobStore, clock: HandClock, tmp_path: Path
):
    """A cheater may know when prompts are generated, and choose that time."""
    stock(records, blobs, A, workloads=1)
    trusted = LocalTrusted(A)
    context = make_context(records, blobs, trusted, clock=clock)
    generated = asyncio.Event()
    generating = asyncio.create_task(with_trusted(context, trusted, generated.wait))
    await eventually(lambda: len(clock.waits) == 1, "the lock")
    judging = asyncio.create_task(verdicts(context, tmp_path, cheater=SmallerModel()))
    renewal_s = context.policy.lease_s / 3
    for _ in range(int(LONGEST_TASK_S / renewal_s) + 1):
        # One waits for a second opinion, and one keeps the lock.
        await eventually(lambda: len(clock.waits) == 2, "both to wait")
        clock.advance(renewal_s)
    await eventually(lambda: len(clock.waits) == 2, "both to wait")
    assert not trusted.seeds, "it was not asked yet"
    generated.set()
    await generating
    await eventually(lambda: clock.waits == [1.0], "the next try")
    clock.advance(1.0)
    outcome, reason = (await judging)["cheater"]
    assert outcome is CheckOutcome.FAILED
    assert "asked again, says the same as before" in reason


async def test_a_second_opinion_goes_before_prompts_for_later(
    records: Records, blobs: BlobStore, clock: HandClock
):
    trusted = LocalTrusted(A)
    context = make_context(records, blobs, trusted, clock=clock)

    async def judge() -> str:
        return "judged"

    release = asyncio.Event()
    holding = asyncio.create_task(with_trusted(context, trusted, release.wait))
    await eventually(lambda: len(clock.waits) == 1, "the lock")
    waiting = asyncio.create_task(when_trusted_is_free(context, trusted, judge))
    await eventually(lambda: len(clock.waits) == 2, "somebody who waits")
    release.set()
    await holding
    with pytest.raises(LeaseBusy):
        await with_trusted(context, trusted, judge)
    clock.advance(1.0)
    assert await waiting == "judged"
    assert await with_trusted(context, trusted, judge) == "judged"


async def test_who_has_waited_longest_for_a_trusted_executor_is_next(
    records: Records, blobs: BlobStore, clock: HandClock
):
    """And not who asks again at once, before others look whether it is free."""
    trusted = LocalTrusted(A)
    context = make_context(records, blobs, trusted, clock=clock)
    release = asyncio.Event()
    order: list[str] = []

    async def ask(name: str) -> None:
        order.append(name)
        await release.wait()

    def asking(name: str) -> asyncio.Task[None]:
        return asyncio.create_task(
            when_trusted_is_free(context, trusted, lambda: ask(name))
        )

    first = asking("first")
    await eventually(lambda: len(clock.waits) == 1, "the lock")
    patient = asking("patient")
    await eventually(lambda: len(clock.waits) == 2, "somebody who waits")
    clock.advance(0.5)
    release.set()
    await first
    again = asking("again")
    await eventually(lambda: len(clock.waits) == 2, "both to wait")
    clock.advance(1.0)
    await patient
    await eventually(lambda: again.done() or 1.0 in clock.waits, "the next try")
    clock.advance(1.0)
    await again
    assert order == ["first", "patient", "again"]


def receipt(key: Ed25519PrivateKey, **changes: object) -> dict[str, object]:
    fields = {
        "id": "r1",
        "executor": "busy",
        "job": "job_1",
        "gpu_class": A.value,
        "started_at": steady_now() - 5,
        "valid_s": 60.0,
        "issuer": "instance",
        **changes,
    }
    return receipts.sign(receipts.Receipt(**fields), key)  # type: ignore[arg-type]


async def test_an_excuse_counts_though_the_machine_has_slept(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # Clocks for spans stand still meanwhile.
    monkeypatch.setattr(clock, "_BEGAN", clock.steady_now() - time.monotonic() - 7200)
    key = Ed25519PrivateKey.generate()
    batch = make_batch(
        context,
        Executors(busy=Declines(receipt(key, started_at=time.time() - 5))),
        [A],
        tmp_path,
        instance=keys.public_hex(key),
    )
    (check,) = await batch.run([executor("busy", A)])
    assert check.outcome is CheckOutcome.EXCUSED, check.reason


@pytest.mark.both_databases
async def test_receipts_excuse_once_and_forgeries_never(
    context: Context, tmp_path: Path
):
    stock(context.records, context.blobs, A, workloads=8, seed=2)
    key = Ed25519PrivateKey.generate()
    foreign = Ed25519PrivateKey.generate()
    good = receipt(key)
    tries = {
        "good": good,
        "again": good,
        "forged": receipt(foreign),
        "of another": receipt(key, id="r2", executor="x"),
        "of the future": receipt(key, id="r3", started_at=steady_now() + 100),
        "old": receipt(key, id="r4", valid_s=1.0),
        "changed": {**receipt(key, id="r5"), "valid_s": 3600.0},
    }
    found: dict[str, CheckOutcome] = {}
    for name, one in tries.items():
        batch = make_batch(
            context,
            Executors(busy=Declines(one)),
            [A],
            tmp_path,
            instance=keys.public_hex(key),
        )
        (check,) = await batch.run([executor("busy", A)])
        found[name] = check.outcome
    assert found.pop("good") is CheckOutcome.EXCUSED
    assert set(found.values()) == {CheckOutcome.FAILED}


class Claiming(Honest):
    """Says what it is told to say of its GPU."""

    def __init__(self, number: int, **gpu: object) -> None:
        super().__init__()
        self._gpu = {
            "name": "Tesla T4",
            "memory_mb": 15360,
            "uuid": f"GPU-{number:08d}-1111-1111-1111-111111111111",
            "driver": "535.104.05",
            "compute_capability": "7.5",
            **gpu,
        }

    def claims(self) -> Claims | None:
        return Claims(inventory=[self._gpu])


async def test_lies_about_the_gpu_and_one_gpu_behind_two_are_found(
    records: Records, blobs: BlobStore, tmp_path: Path
):
    stock(records, blobs, GPUClass.T4, workloads=1)
    context = make_context(records, blobs)
    liars = {
        "honest": Claiming(1),
        "name": Claiming(2, name="GeForce GTX 1080"),
        "memory": Claiming(3, memory_mb=8000),
        "one": Claiming(4),
        "other": Claiming(4),
        "mute": Honest(),
    }
    expected = {GPUClass.T4: Expected(GPUClass.T4.value, inventory=True)}
    checks = await make_batch(
        context, Executors(**liars), [GPUClass.T4], tmp_path, expected
    ).run([executor(name, GPUClass.T4) for name in liars])
    found = {check.executor.name: check.outcome for check in checks}
    assert found.pop("honest") is CheckOutcome.PASSED, [
        check.reason for check in checks
    ]
    assert set(found.values()) == {CheckOutcome.FAILED}
    asked = [order["claims"] for one in liars.values() for order in one.orders]
    assert asked == [{"inventory": True}] * len(liars), "proofs begin with the seed"


class HasMemory(Honest):
    """Proves its memory, or says something."""

    def __init__(self, *, really: bool) -> None:
        super().__init__()
        self._really = really

    async def rest(self, order: OrderDocument, seed: int) -> AsyncIterator[Message]:
        async for message in super().rest(order, seed):
            yield message
            if isinstance(message, Hash):
                nonce = self.nonce(order, seed, message)
                digest = digest_of(f"vram {nonce}") if self._really else "0" * 64
                yield Claims(
                    vram={
                        "gigabytes": 13.6,
                        "digest": digest,
                        "fill_s": 1.0,
                        "read_s": 1.0,
                        "device": "T4",
                    }
                )


@pytest.mark.parametrize(
    ("really", "outcome"), [(True, CheckOutcome.PASSED), (False, CheckOutcome.FAILED)]
)
async def test_memory_is_proven_by_what_the_trusted_executor_finds(
    records: Records,
    blobs: BlobStore,
    tmp_path: Path,
    really: bool,
    outcome: CheckOutcome,
):
    stock(records, blobs, GPUClass.T4, workloads=1)
    context = make_context(records, blobs, LocalTrusted(GPUClass.T4))
    expected = {GPUClass.T4: Expected(GPUClass.T4.value, vram_gb=13.6, claims_s=60.0)}
    opens = Executors(one=HasMemory(really=really))
    (check,) = await make_batch(context, opens, [GPUClass.T4], tmp_path, expected).run(
        [executor("one", GPUClass.T4)]
    )
    assert check.outcome is outcome, check.lines


class Forgetful(LocalTrusted):
    """Its memory is bad: no proof of it comes out twice."""

    async def prove(
        self, cls: Class, nonce: str, proofs: Mapping[str, Any]
    ) -> dict[str, str]:
        return {"vram": digest_of(f"{nonce} {next(self.numbers)}")}

    numbers = count()


async def test_a_trusted_executor_with_bad_memory_blames_nobody(
    records: Records, blobs: BlobStore, tmp_path: Path
):
    stock(records, blobs, GPUClass.T4, workloads=1)
    context = make_context(records, blobs, Forgetful(GPUClass.T4))
    expected: dict[Class, Expected] = {
        GPUClass.T4: Expected(GPUClass.T4.value, vram_gb=13.6, claims_s=60.0)
    }
    opens = Executors(one=HasMemory(really=True))
    (check,) = await make_batch(context, opens, [GPUClass.T4], tmp_path, expected).run(
        [executor("one", GPUClass.T4)]
    )
    assert check.outcome is CheckOutcome.UNJUDGED, "and lets nobody pass"
    assert "contradicts itself" in check.reason


class Hangs(Honest):
    """Comes, and says nothing more."""

    def __init__(self) -> None:
        super().__init__()
        self.came = asyncio.Event()

    async def first(self, order: OrderDocument) -> Message:
        self.came.set()
        await asyncio.Event().wait()
        raise AssertionError


@pytest.mark.both_databases
async def test_a_batch_that_is_interrupted_counts_for_nobody(
    context: Context, tmp_path: Path
):
    slow = Hangs()
    batch = make_batch(context, Executors(slow=slow), [A], tmp_path)
    running = asyncio.create_task(
        batch.run([executor("slow", A), executor("honest", A)])
    )
    await slow.came.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    rows = context.records.checks_of(batch.id)
    assert {row["outcome"] for row in rows} == {CheckOutcome.BLAMELESS}
    row = context.records.batch(batch.id)
    assert row and row["outcome"] == "abandoned"
    assert {one.alpha + one.beta for one in context.records.executors()} == {4.0}, (
        "the prior and nothing more"
    )


@pytest.mark.parametrize("heard", [True, False])
async def test_a_batch_is_over_when_the_instance_has_heard_of_it(
    context: Context, tmp_path: Path, heard: bool
):
    records = context.records
    seen = list[tuple[str, bool]]()

    async def keep(checks: Sequence[Check]) -> None:
        seen.append(
            (
                "keep",
                any(row["scored"] for row in records.checks_of(checks[0].batch_id)),
            )
        )

    async def tell(checks: Sequence[Check]) -> bool:
        seen.append(
            (
                "tell",
                all(row["scored"] for row in records.checks_of(checks[0].batch_id)),
            )
        )
        assert records.open_batches(), (
            "nobody would tell of it if this process died now"
        )
        return heard

    batch = make_batch(context, Executors(), [A], tmp_path, keep=keep, tell=tell)
    await batch.run([executor("honest", A)])
    assert seen == [
        ("keep", False),
        ("tell", True),
    ], "evidence is there before a check counts"
    assert bool(records.open_batches()) is not heard
