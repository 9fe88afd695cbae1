"""Row images: pruned events leave an image of each row instead of whole tables; and
indexes for retention.
"""

import zlib

import msgspec
import sqlalchemy as sa
from alembic import op

from gpuyard.domain.events import Table
from gpuyard.ledger.row_images import import_rows

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None
INTEGER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")
HAS_PARENTS = sa.text("CAST(depends_on AS TEXT) <> '[]'")
_ROWS_AT_ONCE = 500


def upgrade() -> None:
    op.create_table(
        "row_images",
        sa.Column("table", TEXT, nullable=False),
        sa.Column("key", TEXT, nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("table", "key"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "pruned",
        sa.Column("name", TEXT, nullable=False),
        sa.Column("seq", INTEGER, nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_index("items_by_job", "items", ["job_id"], unique=False)
    op.create_index(
        "jobs_with_parents",
        "jobs",
        ["id"],
        unique=False,
        sqlite_where=HAS_PARENTS,
        postgresql_where=HAS_PARENTS,
    )
    _convert_snapshots(op.get_bind())
    op.drop_table("snapshots")


def _convert_snapshots(tx: sa.Connection) -> None:
    """Write the rows of a snapshot of whole tables as images."""
    found = tx.execute(sa.text('SELECT seq, "table" FROM snapshots')).all()
    for _, name in found:
        body: bytes = tx.execute(
            sa.text('SELECT body FROM snapshots WHERE "table" = :name'), {"name": name}
        ).scalar_one()
        # Undecoded rows: decoded ones would take many times the memory.
        rows = msgspec.json.decode(zlib.decompress(body), type=list[msgspec.Raw])
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            part = rows[start : start + _ROWS_AT_ONCE]
            decoded = [msgspec.json.decode(row, type=dict[str, object]) for row in part]
            import_rows(tx, Table(name), decoded)
    if found:
        first = tx.execute(sa.text("SELECT min(seq) FROM events")).scalar()
        upto = max(seq for seq, _ in found)
        # The old snapshots held the kept events too.
        seq = upto if first is None else min(upto, first - 1)
        tx.execute(
            sa.text("INSERT INTO pruned (name, seq) VALUES ('journal', :seq)"),
            {"seq": seq},
        )


def downgrade() -> None:
    raise NotImplementedError("an older gpuyard cannot read the journal any more")
