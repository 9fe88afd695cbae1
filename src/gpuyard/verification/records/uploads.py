"""Uploads: files about to be stored, until a row of the database names them."""

from collections.abc import Sequence

import sqlalchemy as sa

from gpuyard.verification.records.base import RecordsBase, chunks
from gpuyard.verification.tables import series, uploads, workloads


class UploadRecords(RecordsBase):
    """Uploads. A process that dies before it names a file leaves its upload here."""

    def note_uploads(self, blobs: Sequence[str]) -> None:
        """Note that files are about to be stored."""
        now = self._now()
        with self.database.writing(lock="uploads") as tx:
            for blob in set(blobs):
                tx.execute(uploads.delete().where(uploads.c.blob == blob))
                tx.execute(uploads.insert().values(blob=blob, at=now))

    def stale_uploads(self, before: float) -> list[str]:
        """The files noted before then that no row names."""
        named = sa.or_(
            sa.exists().where(series.c.blob == uploads.c.blob),
            sa.exists().where(workloads.c.blob == uploads.c.blob),
        )
        with self.database.reading() as tx:
            return list(
                tx.execute(
                    sa.select(uploads.c.blob).where(uploads.c.at < before, ~named)
                ).scalars()
            )

    def forget_uploads(self, blobs: Sequence[str]) -> None:
        """Remove the notes of these files."""
        with self.database.writing() as tx:
            for some in chunks(blobs):
                tx.execute(uploads.delete().where(uploads.c.blob.in_(some)))
