"""What the trusted executor of each class has said of its engine."""

from collections.abc import Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from gpuyard.verification.classes import Class
from gpuyard.verification.records.base import RecordsBase
from gpuyard.verification.tables import trusted_runtimes


@dataclass(frozen=True, slots=True)
class TrustedRuntime:
    """What a trusted executor said of its engine: its version and number format.

    `accepted`: when the class was calibrated, or else at first. `newest`: when it ran
    last.
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
        wanted = sa.select(trusted_runtimes.c.accepted, trusted_runtimes.c.newest)
        with self.database.reading() as tx:
            row = tx.execute(
                wanted.where(trusted_runtimes.c.gpu_class == cls.value)
            ).first()
            return TrustedRuntime(*row) if row else None

    def note_runtime(self, cls: Class, said: Mapping[str, str]) -> None:
        """Note what the trusted executor says now. What it says first is accepted."""
        mine = trusted_runtimes.c.gpu_class == cls.value
        newest = trusted_runtimes.update().where(mine).values(newest=dict(said))
        with self.database.writing(lock="trusted runtimes") as tx:
            if not tx.execute(newest).rowcount:
                tx.execute(
                    trusted_runtimes.insert().values(
                        gpu_class=cls.value, accepted=dict(said), newest=dict(said)
                    )
                )

    def accept_runtime(self, cls: Class, said: Mapping[str, str]) -> bool:
        """Accept what the trusted executor says; returns whether it said another thing
        before.
        """
        mine = trusted_runtimes.c.gpu_class == cls.value
        with self.database.writing(lock="trusted runtimes") as tx:
            before = tx.execute(
                sa.select(trusted_runtimes.c.accepted).where(mine)
            ).first()
            tx.execute(trusted_runtimes.delete().where(mine))
            tx.execute(
                trusted_runtimes.insert().values(
                    gpu_class=cls.value, accepted=dict(said), newest=dict(said)
                )
            )
            return before is not None and before[0] != dict(said)
