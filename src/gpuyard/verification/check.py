"""A check: one executor's part in a batch, from its sample to what is made of it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuyard.verification.channel import Channel, Order
from gpuyard.verification.claims import Expected
from gpuyard.verification.evidence import public_order
from gpuyard.verification.executors import Executor
from gpuyard.verification.protocol import one_line
from gpuyard.verification.taking import Taken
from gpuyard.verification.times import now
from gpuyard.verification.trust import Outcome
from gpuyard.verification.verdict import Evidence, Line, judge, outcome


@dataclass(slots=True)
class Check:
    """What happened, and when: `…_at` as `now` tells, None for what did not happen.

    `fault` is what broke on our side, `silence` why no answers came, `unread` why those that came could not be kept.
    `answers` is where the answer file was put aside, `again` what the trusted executor said when asked once more.
    """

    taken: Taken
    batch_id: str
    executor: Executor
    trusted: str
    deadline_s: float
    order: Order
    expected: Expected
    created_at: float = field(default_factory=now)
    channel: Channel | None = None
    job_id: str | None = None
    ready_at: float | None = None
    released_at: float | None = None
    hashed_at: float | None = None
    claimed_at: float | None = None
    answered_at: float | None = None
    declined_at: float | None = None
    sha256: str | None = None
    answers: Path | None = None
    claims: dict[str, Any] | None = None
    receipts: tuple[dict[str, Any], ...] = ()
    issuers: dict[str, str] = field(default_factory=dict[str, str])
    fault: str | None = None
    silence: str | None = None
    unread: str | None = None
    again: str | None = None
    lines: tuple[Line, ...] = ()

    @property
    def id(self) -> str:
        """Its id, which its sample was given to."""
        return self.taken.check_id

    @property
    def under_way(self) -> bool:
        """Whether something is still to be heard of it."""
        return not (self.fault or self.silence or self.unread or self.declined_at or self.answered_at)

    @property
    def solve_s(self) -> float | None:
        """From the seed to the answers' hash."""
        return None if self.hashed_at is None or self.released_at is None else self.hashed_at - self.released_at

    @property
    def outcome(self) -> Outcome:
        """What its lines come to."""
        return outcome(self.lines)

    @property
    def suspect(self) -> bool:
        """Whether all that speaks against it is the hidden answer, and the trusted executor was not asked again."""
        wrong = [line.name for line in self.lines if line.ok is False]
        return wrong == ["comparison"] and self.again is None

    @property
    def reason(self) -> str:
        """The first thing that speaks against it, or that could not be judged, in one printable line.

        An executor has a say in it, and neither a database nor the yard takes in just anything.
        """
        bad = [line for line in self.lines if line.ok is False] or [line for line in self.lines if line.ok is None]
        return one_line(f"{bad[0].name}: {bad[0].reason}") if bad else ""

    def judge(self) -> None:
        """Judge it by what is known now."""
        self.lines = judge(self.evidence())

    def evidence(self) -> Evidence:
        """Everything it is judged by."""
        taken, (settings, engine) = self.taken, public_order(self.order)
        return Evidence(
            check=self.id, batch=self.batch_id, executor=self.executor.name, gpu_class=self.executor.gpu_class.value,
            trusted=self.trusted, delivery=self.executor.delivery, settings=settings, engine=engine, seed=taken.seed,
            series=taken.series, hidden=taken.hidden, trusted_answer=taken.answer, answer_again=self.again,
            deadline_s=self.deadline_s, released_at=self.released_at, hashed_at=self.hashed_at,
            claimed_at=self.claimed_at, declined_at=self.declined_at, sha256=self.sha256,
            answers=self.answers.read_bytes() if self.answers else None,
            unread=self.unread, silence=self.silence, expected=self.expected, claims=self.claims,
            receipts=self.receipts, issuers=self.issuers, fault=self.fault,
        )  # fmt: skip

    def row(self) -> dict[str, Any]:
        """Its row among the checks."""
        over = bool(self.lines)
        return {
            "id": self.id, "batch_id": self.batch_id, "executor": self.executor.name,
            "gpu_class": self.executor.gpu_class.value, "sample_id": self.taken.sample_id, "job_id": self.job_id,
            "state": "over" if over else "open", "outcome": self.outcome.value if over else None,
            "reason": self.reason, "delivery": self.executor.delivery, "created_at": self.created_at,
            "ready_at": self.ready_at, "released_at": self.released_at, "hashed_at": self.hashed_at,
            "sha256": self.sha256, "answered_at": self.answered_at, "claims": self.claims,
            "solve_s": self.solve_s,
        }  # fmt: skip
