"""Events: what the pipelines did and what they lacked, every one with its class."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from gpuyard.verification.classes import Class
from gpuyard.verification.records.base import Records
from gpuyard.verification.tables import events

DAY_S = 86400.0


class Kind(StrEnum):
    """What an event is about."""

    GENERATION = "LLM_PROMPT_GENERATION"
    SAMPLING = "LLM_PROMPT_SAMPLING"
    ANSWERING = "LLM_PROMPT_ANSWERING"
    EVICTION = "EVICTION"
    BATCH = "VERIFICATION_BATCH"


class Subtype(StrEnum):
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


# They would be true at every turn, so a class says each of them once a day.
_ONCE_A_DAY = frozenset({Subtype.INSUFFICIENT_PROMPTS, Subtype.TRUSTED_NOT_CONFIGURED})


@dataclass(frozen=True, slots=True)
class Event:
    """An event. `gpu_class` is a class's name."""

    seq: int
    at: float
    kind: str
    subtype: str
    gpu_class: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EventCount:
    """How many events of one sort of a class are kept, and when the last one was."""

    kind: str
    subtype: str
    count: int
    last_at: float


class EventRecords(Records):
    """Events of each class."""

    def event(self, kind: Kind, subtype: Subtype, cls: Class, **data: Any) -> bool:
        """Record an event; False when it is one of those told once a day, and was told within one."""
        now, once = self._now(), subtype in _ONCE_A_DAY
        row = {"at": now, "kind": kind.value, "subtype": subtype.value, "gpu_class": cls.value, "data": data}
        told = sa.exists().where(
            events.c.subtype == subtype.value, events.c.gpu_class == cls.value, events.c.at > now - DAY_S
        )
        with self.database.writing(lock=f"events {subtype} {cls}" if once else None) as tx:
            if once and tx.scalar(sa.select(told)):
                return False
            tx.execute(events.insert().values(row))
            return True

    def events(self, cls: Class | None = None, after: int = 0, limit: int = 1000) -> list[Event]:
        """Events after number `after`, oldest first, of one class or of all."""
        wanted = sa.select(events).where(events.c.seq > after).order_by(events.c.seq).limit(limit)
        if cls is not None:
            wanted = wanted.where(events.c.gpu_class == cls.value)
        with self.database.reading() as tx:
            return [Event(**row) for row in tx.execute(wanted).mappings()]

    def event_counts(self, cls: Class) -> list[EventCount]:
        """The class's events by sort."""
        wanted = (
            sa.select(events.c.kind, events.c.subtype, sa.func.count(), sa.func.max(events.c.at))
            .where(events.c.gpu_class == cls.value)
            .group_by(events.c.kind, events.c.subtype)
            .order_by(events.c.kind, events.c.subtype)
        )
        with self.database.reading() as tx:
            return [EventCount(*row) for row in tx.execute(wanted)]
