"""Arrays: one job with many tasks."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None
INTEGER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")
_IS_TASK = sa.text("array_id IS NOT NULL")


def upgrade() -> None:
    op.create_table(
        "arrays",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=True),
        sa.Column("tasks", TEXT, nullable=True),
        sa.Column("total", INTEGER, nullable=True),
        sa.Column("at_most", INTEGER, nullable=True),
        sa.Column("priority", INTEGER, nullable=True),
        sa.Column("project", TEXT, nullable=True),
        sa.Column("labels", sa.JSON(), nullable=True),
        sa.Column("warnings", sa.JSON(), nullable=True),
        sa.Column("idempotency_key", TEXT, nullable=True),
        sa.Column("created_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("idempotency_key"),
    )
    op.create_index("arrays_by_name", "arrays", ["name", "id"])
    op.add_column("jobs", sa.Column("array_id", TEXT, nullable=True))
    op.add_column("jobs", sa.Column("array_index", INTEGER, nullable=True))
    op.create_index(
        "jobs_by_array",
        "jobs",
        ["array_id", "array_index"],
        sqlite_where=_IS_TASK,
        postgresql_where=_IS_TASK,
    )


def downgrade() -> None:
    op.drop_index("jobs_by_array", "jobs")
    for name in ("array_index", "array_id"):
        op.drop_column("jobs", name)
    op.drop_table("arrays")
