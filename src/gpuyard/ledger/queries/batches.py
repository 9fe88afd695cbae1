"""Reading batches and their items."""

import sqlalchemy as sa

from gpuyard.domain.batches import BatchState, ItemState
from gpuyard.ledger.queries.base import LedgerReader, Row
from gpuyard.ledger.tables import batches, items


class BatchQueries(LedgerReader):
    """Reads of batches and their items."""

    def batches(self) -> list[Row]:
        """Every batch, the newest first."""
        return self._rows(
            sa.select(batches).order_by(batches.c.created_at.desc(), batches.c.id)
        )

    def live_batches(self) -> list[Row]:
        """The batches that are not over, the oldest first."""
        live = [state.value for state in BatchState if not state.terminal]
        return self._rows(
            sa.select(batches)
            .where(batches.c.state.in_(live))
            .order_by(batches.c.created_at)
        )

    def batch(self, batch_id: str) -> Row | None:
        """The batch of this id."""
        return self._row(sa.select(batches).where(batches.c.id == batch_id))

    def batch_by_key(self, key: str) -> Row | None:
        """The batch that was submitted with this idempotency key."""
        return self._row(sa.select(batches).where(batches.c.idempotency_key == key))

    def batch_ids(self, beginning: str) -> list[str]:
        """The batch ids that start with `beginning`."""
        rows = self._rows(
            sa.select(batches.c.id).where(
                batches.c.id.startswith(beginning, autoescape=True)
            )
        )
        return [row["id"] for row in rows]

    def items_of(self, batch_id: str) -> list[Row]:
        """A batch's items in order."""
        return self._rows(
            sa.select(items)
            .where(items.c.batch_id == batch_id)
            .order_by(items.c.number)
        )

    def item_counts(self, batch_id: str | None = None) -> dict[str, dict[str, int]]:
        """By batch, or for one batch: how many items are in each state."""
        counted = sa.select(
            items.c.batch_id, items.c.state, sa.func.count().label("count")
        )
        if batch_id is not None:
            counted = counted.where(items.c.batch_id == batch_id)
        found: dict[str, dict[str, int]] = {}
        for row in self._rows(counted.group_by(items.c.batch_id, items.c.state)):
            found.setdefault(row["batch_id"], {})[row["state"]] = row["count"]
        return found

    def newest_items(self, script: str, most: int) -> list[Row]:
        """The items of a script that were completed last, newest first."""
        of_script = (
            sa.select(items)
            .join(batches, batches.c.id == items.c.batch_id)
            .where(batches.c.script == script)
        )
        done = of_script.where(items.c.state == ItemState.COMPLETED.value)
        return self._rows(done.order_by(items.c.ended_at.desc()).limit(most))
