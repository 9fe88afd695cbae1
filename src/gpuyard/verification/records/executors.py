"""What is known of executors, what is usual for a class, and which receipts were seen."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import sqlalchemy as sa

from gpuyard.verification.classes import Class
from gpuyard.verification.records.base import Records
from gpuyard.verification.tables import executors, ranges, receipts


@dataclass(frozen=True, slots=True)
class ExecutorRecord:
    """An executor's trust, as a Beta distribution at `updated_at`, and how often it was quarantined of late."""

    name: str
    gpu_class: str
    alpha: float
    beta: float
    updated_at: float
    quarantined_until: float | None = None
    repeats: int = 0


@dataclass(frozen=True, slots=True)
class Range:
    """What a class's own executors were measured at."""

    low: float
    high: float
    calibrated_at: float


class ExecutorRecords(Records):
    """Executors, ranges and receipts."""

    def executor(self, name: str) -> ExecutorRecord | None:
        """What is known of one; None before its first check."""
        return next((one for one in self.executors() if one.name == name), None)

    def executors(self) -> list[ExecutorRecord]:
        """All that were ever checked, by name."""
        with self.database.reading() as tx:
            rows = tx.execute(sa.select(executors).order_by(executors.c.name)).mappings()
            return [ExecutorRecord(**row) for row in rows]

    def put_executor(self, executor: ExecutorRecord) -> None:
        """Write over what was known of it."""
        with self.database.writing(lock="executors") as tx:
            tx.execute(executors.delete().where(executors.c.name == executor.name))
            tx.execute(executors.insert().values(**asdict(executor)))

    def ranges(self, cls: Class) -> dict[str, Range]:
        """What a class was calibrated to, by name; empty before."""
        wanted = sa.select(ranges.c.name, ranges.c.low, ranges.c.high, ranges.c.calibrated_at)
        with self.database.reading() as tx:
            rows = tx.execute(wanted.where(ranges.c.gpu_class == cls.value).order_by(ranges.c.name))
            return {name: Range(low, high, at) for name, low, high, at in rows}

    def put_ranges(self, cls: Class, found: Mapping[str, tuple[float, float]]) -> None:
        """Write over a class's ranges of these names; others stay."""
        rows = [{"gpu_class": cls.value, "name": name, "low": low, "high": high, "calibrated_at": self._now()}
                for name, (low, high) in found.items()]  # fmt: skip
        with self.database.writing(lock="ranges") as tx:
            tx.execute(ranges.delete().where(ranges.c.gpu_class == cls.value, ranges.c.name.in_(found)))
            if rows:
                tx.execute(ranges.insert(), rows)

    def use_receipt(self, receipt_id: str) -> bool:
        """Remember a receipt; False when it was seen before."""
        with self.database.writing(lock="receipts") as tx:
            if tx.execute(sa.select(receipts.c.id).where(receipts.c.id == receipt_id)).first():
                return False
            tx.execute(receipts.insert().values(id=receipt_id, at=self._now()))
            return True

    def forget_receipts(self, before: float) -> None:
        """Forget those that excused before then: they must have expired."""
        with self.database.writing(lock="receipts") as tx:
            tx.execute(receipts.delete().where(receipts.c.at < before))
