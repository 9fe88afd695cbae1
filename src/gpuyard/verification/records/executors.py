"""What is known of executors, the calibration of classes, and the receipts seen."""

from collections.abc import Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from gpuyard.verification.classes import Class
from gpuyard.verification.records.base import RecordsBase
from gpuyard.verification.tables import executors, ranges, receipts


@dataclass(frozen=True, slots=True)
class ExecutorRecord:
    """An executor's trust and quarantine.

    `alpha` and `beta`: its Beta distribution at `updated_at`. `repeats`: how often it
    was quarantined lately.
    """

    name: str
    gpu_class: str
    alpha: float
    beta: float
    updated_at: float
    quarantined_until: float | None = None
    repeats: int = 0


@dataclass(frozen=True, slots=True)
class CalibratedRange:
    """The range of one figure of a class, by calibration."""

    low: float
    high: float
    calibrated_at: float


class ExecutorRecords(RecordsBase):
    """Executors, ranges and receipts."""

    def executor(self, name: str) -> ExecutorRecord | None:
        """One executor; None before its first check."""
        return next((one for one in self.executors() if one.name == name), None)

    def executors(self) -> list[ExecutorRecord]:
        """All executors that were ever checked, by name."""
        with self.database.reading() as tx:
            rows = tx.execute(
                sa.select(executors).order_by(executors.c.name)
            ).mappings()
            return [ExecutorRecord(**row) for row in rows]

    def ranges(self, cls: Class) -> dict[str, CalibratedRange]:
        """The calibration of a class by name; empty before."""
        wanted = sa.select(
            ranges.c.name, ranges.c.low, ranges.c.high, ranges.c.calibrated_at
        )
        with self.database.reading() as tx:
            rows = tx.execute(
                wanted.where(ranges.c.gpu_class == cls.value).order_by(ranges.c.name)
            )
            return {
                name: CalibratedRange(low, high, at) for name, low, high, at in rows
            }

    def put_ranges(self, cls: Class, found: Mapping[str, tuple[float, float]]) -> None:
        """Replace the class's ranges of these names."""
        rows = [
            {
                "gpu_class": cls.value,
                "name": name,
                "low": low,
                "high": high,
                "calibrated_at": self._now(),
            }
            for name, (low, high) in found.items()
        ]
        with self.database.writing(lock="ranges") as tx:
            tx.execute(
                ranges.delete().where(
                    ranges.c.gpu_class == cls.value, ranges.c.name.in_(found)
                )
            )
            if rows:
                tx.execute(ranges.insert(), rows)

    def forget_ranges(self, cls: Class, prefix: str) -> None:
        """Remove the class's ranges whose names begin like this."""
        with self.database.writing(lock="ranges") as tx:
            tx.execute(
                ranges.delete().where(
                    ranges.c.gpu_class == cls.value,
                    ranges.c.name.startswith(prefix, autoescape=True),
                )
            )

    def use_receipt(self, receipt_id: str) -> bool:
        """Remember a receipt; False when it was used before."""
        with self.database.writing(lock="receipts") as tx:
            if tx.execute(
                sa.select(receipts.c.id).where(receipts.c.id == receipt_id)
            ).first():
                return False
            tx.execute(receipts.insert().values(id=receipt_id, at=self._now()))
            return True

    def forget_receipts(self, before: float) -> None:
        """Forget receipts used before then; they must have expired."""
        with self.database.writing(lock="receipts") as tx:
            tx.execute(receipts.delete().where(receipts.c.at < before))
