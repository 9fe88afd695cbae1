"""Events: what the pipelines did and what they lacked, each with its class."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from gpuyard.verification.classes import Class
from gpuyard.verification.records.base import RecordsBase
from gpuyard.verification.tables import events

DAY_S = 86400.0


class PipelineEventKind(StrEnum):
    """What an event is about."""

    GENERATION = "LLM_PROMPT_GENERATION"
    SAMPLING = "LLM_PROMPT_SAMPLING"
    ANSWERING = "LLM_PROMPT_ANSWERING"
    EVICTION = "EVICTION"
    BATCH = "VERIFICATION_BATCH"


class EventSubtype(StrEnum):
    """What happened."""

    STARTED = "STARTED"
    SUCCESS = "SUCCESS"
    FAILURE = "FAILURE"
    SKIPPED = "SKIPPED"
    NEW_WORKLOADS_CREATED = "NEW_WORKLOADS_CREATED"
    UNPROCESSED_WORKLOADS = "UNPROCESSED_WORKLOADS"
    INSUFFICIENT_PROMPTS = "INSUFFICIENT_PROMPTS"
    ANSWERS_MISSING = "ANSWERS_MISSING"
    ERROR_UPLOADING = "ERROR_UPLOADING"
    ERROR_DOWNLOADING = "ERROR_DOWNLOADING"
    TRUSTED_NOT_CONFIGURED = "TRUSTED_NOT_CONFIGURED"
    TRUSTED_SILENT = "TRUSTED_SILENT"
    TRUSTED_ANSWERED = "TRUSTED_ANSWERED"


# These would be recorded at every turn, so each class records them once a day.
_ONCE_A_DAY = frozenset(
    {EventSubtype.INSUFFICIENT_PROMPTS, EventSubtype.TRUSTED_NOT_CONFIGURED}
)


@dataclass(frozen=True, slots=True)
class PipelineEvent:
    """An event. `gpu_class` is the name of its class."""

    seq: int
    at: float
    kind: str
    subtype: str
    gpu_class: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TrustedSilence:
    """How often in a row a trusted executor did not do what it was asked, since when
    (UTC seconds), and why it did not last. `busy`: other jobs had its place then.
    """

    times: int
    since: float
    reason: str
    busy: bool


@dataclass(frozen=True, slots=True)
class EventCount:
    """How many events of one kind a class has, and when the last one was."""

    kind: str
    subtype: str
    count: int
    last_at: float


class EventRecords(RecordsBase):
    """The events of each class."""

    def event(
        self, kind: PipelineEventKind, subtype: EventSubtype, cls: Class, **data: Any
    ) -> bool:
        """Record an event; returns whether it was recorded.

        Some kinds are recorded at most once a day.
        """
        now = self._now()
        once = subtype in _ONCE_A_DAY
        row = {
            "at": now,
            "kind": kind.value,
            "subtype": subtype.value,
            "gpu_class": cls.value,
            "data": data,
        }
        told = sa.exists().where(
            events.c.subtype == subtype.value,
            events.c.gpu_class == cls.value,
            events.c.at > now - DAY_S,
        )
        with self.database.writing(
            lock=f"events {subtype} {cls}" if once else None
        ) as tx:
            if once and tx.scalar(sa.select(told)):
                return False
            tx.execute(events.insert().values(row))
            return True

    def events(
        self, cls: Class | None = None, after: int = 0, limit: int = 1000
    ) -> list[PipelineEvent]:
        """The events after number `after`, oldest first, of one class or of all."""
        wanted = (
            sa.select(events)
            .where(events.c.seq > after)
            .order_by(events.c.seq)
            .limit(limit)
        )
        if cls is not None:
            wanted = wanted.where(events.c.gpu_class == cls.value)
        with self.database.reading() as tx:
            return [PipelineEvent(**row) for row in tx.execute(wanted).mappings()]

    def newest_event(
        self, cls: Class, kind: PipelineEventKind, subtype: EventSubtype
    ) -> PipelineEvent | None:
        """The class's newest event of this kind; None if there is none."""
        wanted = (
            sa.select(events)
            .where(
                events.c.gpu_class == cls.value,
                events.c.kind == kind.value,
                events.c.subtype == subtype.value,
            )
            .order_by(events.c.seq.desc())
            .limit(1)
        )
        with self.database.reading() as tx:
            row = tx.execute(wanted).mappings().first()
            return PipelineEvent(**row) if row else None

    def note_silence(self, cls: Class, reason: str, *, busy: bool) -> None:
        """Note that the trusted executor of a class did not do what it was asked."""
        silent = EventSubtype.TRUSTED_SILENT
        self.event(PipelineEventKind.BATCH, silent, cls, reason=reason, busy=busy)

    def note_answer(self, cls: Class) -> None:
        """Note that it did. Only the first time after a silence is an event."""
        if self.trusted_silence(cls):
            answered = EventSubtype.TRUSTED_ANSWERED
            self.event(PipelineEventKind.BATCH, answered, cls)

    def trusted_silence(self, cls: Class) -> TrustedSilence | None:
        """The silence of the trusted executor of a class; None if it answers."""
        kind = PipelineEventKind.BATCH
        answered = self.newest_event(cls, kind, EventSubtype.TRUSTED_ANSWERED)
        newest = self.newest_event(cls, kind, EventSubtype.TRUSTED_SILENT)
        after = answered.seq if answered else 0
        if newest is None or newest.seq < after:
            return None
        silent = sa.select(sa.func.count(), sa.func.min(events.c.at)).where(
            events.c.gpu_class == cls.value,
            events.c.subtype == EventSubtype.TRUSTED_SILENT.value,
            events.c.seq > after,
        )
        with self.database.reading() as tx:
            (times, since) = tx.execute(silent).one()
        data = newest.data
        return TrustedSilence(times, since, data["reason"], data["busy"])

    def event_counts(self, cls: Class) -> list[EventCount]:
        """How many events of each kind a class has."""
        wanted = (
            sa.select(
                events.c.kind,
                events.c.subtype,
                sa.func.count(),
                sa.func.max(events.c.at),
            )
            .where(events.c.gpu_class == cls.value)
            .group_by(events.c.kind, events.c.subtype)
            .order_by(events.c.kind, events.c.subtype)
        )
        with self.database.reading() as tx:
            return [EventCount(*row) for row in tx.execute(wanted)]

    def remove_events(self, cls: Class, before: float) -> None:
        """Remove the class's events from before then."""
        with self.database.writing() as tx:
            tx.execute(
                events.delete().where(
                    events.c.gpu_class == cls.value, events.c.at < before
                )
            )
