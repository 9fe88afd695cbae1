"""What the trusted executor of each class has said of its engine."""

from collections.abc import Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from gpuyard.verification.classes import Class
from gpuyard.verification.records.base import RecordsBase
from gpuyard.verification.records.workloads import retire_answered
from gpuyard.verification.tables import trusted_runtimes


@dataclass(frozen=True, slots=True)
class TrustedRuntime:
    """What a trusted executor said of its engine: its version and number format.

    `accepted`: when the class was calibrated, or else at first. `newest`: what it has
    said since then, if that is something else.
    """

    accepted: Mapping[str, str]
    newest: Mapping[str, str]

    @property
    def changed(self) -> bool:
        """Whether it is another engine now."""
        return self.accepted != self.newest


class TrustedRuntimeRecords(RecordsBase):
    """The engine of each class's trusted executor."""

    def trusted_runtime(self, cls: Class) -> TrustedRuntime | None:
        """What is known of a class's trusted engine; None before it ran."""
        with self.database.reading() as tx:
            return _known(tx, cls)

    def note_runtime(self, cls: Class, said: Mapping[str, str]) -> None:
        """Note what the trusted executor says now. What it says first is accepted.

        Where it says another thing than before, its older answers are used no more.
        Once it has changed, it stays so until a person accepts what it is: who goes
        back to what was accepted may have answered as another meanwhile.
        """
        now = dict(said)
        with self.database.writing(lock="trusted runtimes") as tx:
            known = _known(tx, cls)
            if known is None:
                _put(tx, cls, TrustedRuntime(now, now))
            elif now not in (known.accepted, known.newest):
                _put(tx, cls, TrustedRuntime(known.accepted, now))
                retire_answered(tx, cls, self._now())

    def accept_runtime(self, cls: Class, said: Mapping[str, str]) -> bool:
        """Accept what the trusted executor says; returns whether it said another thing
        since it was accepted last. Then its older answers are used no more.
        """
        now = dict(said)
        with self.database.writing(lock="trusted runtimes") as tx:
            known = _known(tx, cls)
            _put(tx, cls, TrustedRuntime(now, now))
            changed = known is not None and known != TrustedRuntime(now, now)
            if changed:
                retire_answered(tx, cls, self._now())
            return changed


def _known(tx: sa.Connection, cls: Class) -> TrustedRuntime | None:
    wanted = sa.select(trusted_runtimes.c.accepted, trusted_runtimes.c.newest)
    row = tx.execute(wanted.where(trusted_runtimes.c.gpu_class == cls.value)).first()
    return TrustedRuntime(*row) if row else None


def _put(tx: sa.Connection, cls: Class, runtime: TrustedRuntime) -> None:
    tx.execute(
        trusted_runtimes.delete().where(trusted_runtimes.c.gpu_class == cls.value)
    )
    tx.execute(
        trusted_runtimes.insert().values(
            gpu_class=cls.value,
            accepted=dict(runtime.accepted),
            newest=dict(runtime.newest),
        )
    )
