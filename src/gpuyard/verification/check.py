"""A check: one executor's part in a batch, from its sample to its verdict."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import structlog

from gpuyard.verification import keys, receipts
from gpuyard.verification.batch_samples import BatchSample
from gpuyard.verification.channels import Channel
from gpuyard.verification.claims import Expected
from gpuyard.verification.clock import steady_now
from gpuyard.verification.context import call
from gpuyard.verification.evidence import public_order
from gpuyard.verification.executors import Executor
from gpuyard.verification.protocol import OrderDocument, one_line
from gpuyard.verification.records import Records
from gpuyard.verification.solver.messages import canonical
from gpuyard.verification.solver.probe import nonce_of
from gpuyard.verification.tolerance import Limits, Printed
from gpuyard.verification.trusted_executor import FollowedAnswers
from gpuyard.verification.verdict import (
    CheckOutcome,
    Evidence,
    VerdictLine,
    judge,
    outcome,
)

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Check:
    """What happened in one check, and when.

    Times (`…_at`) are of `steady_now`, and None for what did not happen. `fault`: what
    failed on our side, as we can show. `waited`: that its job did not start, because
    we had given its place to other jobs. `unexplained`: what failed without such
    proof. `said_s`: how long solving took, as the solver says; without a stream that
    may be `solve_limit_s`. `salt`: what it was sent when its hash had come, at
    `salted_at`. `silence`: why no answers came. `unread`: why answers that
    came could not be kept. `answers`: where the answer file is. `again`: what the
    trusted executor answered when it was asked once more. `trusted_answers`: what it
    answered to every prompt, if that was asked for; `not_compared`: why it did not.
    `runtime`: what its engine says of itself, `trusted_runtime` what the trusted one
    says, `accepted_runtime` what that one said when the class was calibrated, and
    `trusted_class`: the class of the trusted executor. `limits`: how much fingerprints
    may differ, if they may be compared, and `accepts_unknown_draws`: the settings
    accept a trusted engine that cannot tell what a seed draws; `prints_sha256`: the
    hash of theirs, `prints`: where their file is, `followed`: what the trusted executor
    made of their tokens.
    """

    taken: BatchSample
    batch_id: str
    executor: Executor
    trusted: str
    deadline_s: float
    order: OrderDocument
    expected: Expected
    created_at: float = field(default_factory=steady_now)
    channel: Channel | None = None
    job_id: str | None = None
    ready_at: float | None = None
    released_at: float | None = None
    hashed_at: float | None = None
    salt: str = ""
    salted_at: float | None = None
    claimed_at: float | None = None
    answered_at: float | None = None
    declined_at: float | None = None
    sha256: str | None = None
    said_s: float | None = None
    solve_limit_s: float | None = None
    answers: Path | None = None
    claims: dict[str, Any] | None = None
    receipts: tuple[dict[str, Any], ...] = ()
    issuers: dict[str, str] = field(default_factory=dict[str, str])
    fault: str | None = None
    waited: str | None = None
    unexplained: str | None = None
    silence: str | None = None
    unread: str | None = None
    again: str | None = None
    trusted_answers: dict[str, str] | None = None
    not_compared: str | None = None
    runtime: dict[str, str] = field(default_factory=dict[str, str])
    trusted_runtime: dict[str, str] = field(default_factory=dict[str, str])
    accepted_runtime: dict[str, str] = field(default_factory=dict[str, str])
    trusted_class: str | None = None
    limits: Limits | None = None
    accepts_unknown_draws: bool = False
    prints_sha256: str | None = None
    prints: Path | None = None
    followed: FollowedAnswers | None = None
    lines: tuple[VerdictLine, ...] = ()

    @property
    def id(self) -> str:
        """The id of the check; its sample is bound to it."""
        return self.taken.check_id

    @property
    def under_way(self) -> bool:
        """Whether it still waits for something from its solver."""
        return not (
            self.fault
            or self.waited
            or self.unexplained
            or self.silence
            or self.unread
            or self.declined_at
            or self.answered_at
        )

    @property
    def solve_s(self) -> float | None:
        """Seconds from the seed to the hash of the answers."""
        return (
            None
            if self.hashed_at is None or self.released_at is None
            else self.hashed_at - self.released_at
        )

    @property
    def nonce(self) -> str:
        """That of its claims, which follows from the hashes; empty before these."""
        if self.sha256 is None:
            return ""
        hashes = (self.sha256, self.prints_sha256)
        return nonce_of(self.id, self.taken.seed, *hashes, self.salt)

    @property
    def outcome(self) -> CheckOutcome:
        """The outcome that follows from its lines."""
        return outcome(self.lines)

    @property
    def suspect(self) -> bool:
        """Whether only the hidden answer is wrong, and was not rechecked yet."""
        wrong = [line.name for line in self.lines if line.ok is False]
        unasked = self.again is None and self.followed is None
        return wrong == ["comparison"] and unasked

    @property
    def right(self) -> bool:
        """Whether the hidden answer is exactly the trusted one, and nothing wrong."""
        found = {line.name: line.ok for line in self.lines}
        compared = found.get("comparison") is True and self.followed is None
        return compared and False not in found.values()

    @property
    def reason(self) -> str:
        """The first line that is wrong, or was not judged, as one printable line.

        Parts of it come from the executor, and databases do not accept every character.
        """
        bad = [line for line in self.lines if line.ok is False] or [
            line for line in self.lines if line.ok is None
        ]
        return one_line(f"{bad[0].name}: {bad[0].reason}") if bad else ""

    def judge(self) -> None:
        """Judge it by what is known now.

        What an executor sends must not end the batch, whose other checks would then
        count for nobody.
        """
        evidence = self.evidence()
        try:
            self.lines = judge(evidence)
        except Exception as error:
            log.exception("verification_check_not_judged", check=self.id)
            self.unexplained = f"{type(error).__name__}: {error}"
            self.claims = None  # they may have broken it, and would again
            self.lines = judge(self.evidence())

    def evidence(self) -> Evidence:
        """Everything by which it is judged."""
        taken = self.taken
        (settings, engine) = public_order(self.order)
        return Evidence(
            check=self.id,
            batch=self.batch_id,
            executor=self.executor.name,
            gpu_class=self.executor.gpu_class.value,
            trusted=self.trusted,
            delivery=self.executor.delivery,
            settings=settings,
            engine=engine,
            seed=taken.seed,
            series=taken.series,
            hidden=taken.hidden,
            trusted_answer=taken.answer,
            answer_again=self.again,
            trusted_answers=self.trusted_answers,
            not_compared=self.not_compared,
            runtime=self.runtime,
            trusted_runtime=self.trusted_runtime,
            accepted_runtime=self.accepted_runtime,
            trusted_class=self.trusted_class,
            printed=self._printed(),
            deadline_s=self.deadline_s,
            released_at=self.released_at,
            hashed_at=self.hashed_at,
            salt=self.salt,
            salted_at=self.salted_at,
            ready_at=self.ready_at,
            said_s=self.said_s,
            solve_limit_s=self.solve_limit_s,
            claimed_at=self.claimed_at,
            declined_at=self.declined_at,
            sha256=self.sha256,
            answers=self.answers.read_bytes() if self.answers else None,
            unread=self.unread,
            silence=self.silence,
            expected=self.expected,
            claims=self.claims,
            receipts=self.receipts,
            issuers=self.issuers,
            fault=self.fault,
            waited=self.waited,
            unexplained=self.unexplained,
        )

    def _printed(self) -> Printed | None:
        if self.limits is None:
            return None
        followed = self.followed
        return Printed(
            limits=self.limits,
            accepts_unknown_draws=self.accepts_unknown_draws,
            sha256=self.prints_sha256,
            file=self.prints.read_bytes() if self.prints else None,
            trusted=followed.fingerprints if followed else None,
            texts_sha256=texts_sha256(followed) if followed else None,
        )

    def row(self) -> dict[str, Any]:
        """Its row in the table of checks."""
        over = bool(self.lines)
        return {
            "id": self.id,
            "batch_id": self.batch_id,
            "executor": self.executor.name,
            "gpu_class": self.executor.gpu_class.value,
            "sample_id": self.taken.sample_id,
            "job_id": self.job_id,
            "state": "over" if over else "open",
            "outcome": self.outcome.value if over else None,
            "reason": self.reason,
            "delivery": self.executor.delivery,
            "created_at": self.created_at,
            "ready_at": self.ready_at,
            "released_at": self.released_at,
            "hashed_at": self.hashed_at,
            "sha256": self.sha256,
            "answered_at": self.answered_at,
            "claims": self.claims,
            "solve_s": self.solve_s,
        }


def texts_sha256(followed: FollowedAnswers) -> str:
    """The hash of the answer file that followed tokens make."""
    return sha256(canonical(followed.texts)).hexdigest()


INSTANCE = "yard"
"""The issuer in our own receipts. It is part of their format."""


async def excuse(records: Records, issuers: Mapping[str, str], check: Check) -> None:
    """Keep in the check only receipts that excuse it.

    `issuers`: the public keys that are accepted, by issuer.
    """
    known = {
        name: keys.read_public(text, f"verification.issuers.{name}")
        for name, text in issuers.items()
    }
    try:
        found = receipts.excuse(
            check.receipts,
            known,
            check.executor.name,
            check.declined_at or 0.0,
            (),
            gpu_class=check.executor.gpu_class.value,
        )
        for receipt in found:
            if not await call(records.use_receipt, f"{receipt.issuer} {receipt.id}"):
                raise receipts.ReceiptError("has excused before")
    except receipts.ReceiptError as error:
        check.silence = f"{check.silence}; a receipt {error}"
        check.receipts = ()
    else:
        names = {receipt.issuer for receipt in found}
        check.issuers = {name: keys.public_hex(known[name]) for name in names}
