"""Reading datasets and their versions."""

from collections.abc import Collection

import sqlalchemy as sa

from gpuyard.ledger.queries.base import LedgerReader, Row
from gpuyard.ledger.tables import dataset_versions, datasets

# Of a dataset that was removed, only the number of its last version is kept.
_EXISTS = datasets.c.created_at.is_not(None)


class DatasetQueries(LedgerReader):
    """Reads of datasets."""

    def datasets(self) -> list[Row]:
        """Every dataset, by project and name."""
        chosen = sa.select(datasets).where(_EXISTS)
        return self._rows(chosen.order_by(datasets.c.id))

    def datasets_named(self, name: str) -> list[Row]:
        """Those of this name, by project."""
        chosen = sa.select(datasets).where(_EXISTS, datasets.c.name == name)
        return self._rows(chosen.order_by(datasets.c.id))

    def dataset(self, dataset_id: str) -> Row | None:
        """One by its id (`PROJECT/NAME`)."""
        chosen = sa.select(datasets).where(_EXISTS, datasets.c.id == dataset_id)
        return self._row(chosen)

    def last_dataset_version(self, dataset_id: str) -> int:
        """The highest number that a version has had, also if the dataset was removed
        since; 0 if there was none.
        """
        row = self._row(sa.select(datasets).where(datasets.c.id == dataset_id))
        return row["last_version"] if row else 0

    def dataset_versions(self, dataset_ids: Collection[str]) -> list[Row]:
        """The versions of these datasets, the newest first."""
        chosen = dataset_versions.c.dataset.in_(dataset_ids)
        statement = sa.select(dataset_versions).where(chosen)
        newest_first = dataset_versions.c.number.desc()
        return self._rows(statement.order_by(dataset_versions.c.dataset, newest_first))

    def dataset_version(self, version_id: str) -> Row | None:
        """One version by its id (`PROJECT/NAME@NUMBER`)."""
        chosen = dataset_versions.c.id == version_id
        return self._row(sa.select(dataset_versions).where(chosen))

    def dataset_digests(self, project: str) -> set[str]:
        """The digests of all versions of the datasets of a project."""
        rows = self._rows(
            sa.select(dataset_versions.c.digest)
            .join(datasets, datasets.c.id == dataset_versions.c.dataset)
            .where(datasets.c.project == project)
        )
        return {row["digest"] for row in rows}
