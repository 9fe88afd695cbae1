"""Batches and their items."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None
INTEGER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "batches",
        sa.Column("id", TEXT, nullable=False),
        *(
            sa.Column(name, TEXT, nullable=True)
            for name in ("state", "script", "mode", "source", "results")
        ),
        sa.Column("args", sa.JSON(), nullable=True),
        sa.Column("environment", sa.JSON(), nullable=True),
        sa.Column("priority", INTEGER, nullable=True),
        sa.Column("total", INTEGER, nullable=True),
        sa.Column("reload", sa.JSON(), nullable=True),
        *(
            sa.Column(name, TEXT, nullable=True)
            for name in ("problem", "digest", "idempotency_key")
        ),
        *(
            sa.Column(name, sa.Float(), nullable=True)
            for name in ("created_at", "began_at", "ended_at")
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("idempotency_key"),
    )
    op.create_index("ix_batches_state", "batches", ["state"])
    op.create_table(
        "items",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("batch_id", TEXT, nullable=True),
        sa.Column("number", INTEGER, nullable=True),
        *(sa.Column(name, TEXT, nullable=True) for name in ("state", "path", "entry")),
        sa.Column("seconds", sa.Float(), nullable=True),
        sa.Column("args", sa.JSON(), nullable=True),
        sa.Column("attempts", INTEGER, nullable=True),
        *(
            sa.Column(name, TEXT, nullable=True)
            for name in ("job_id", "attempt_id", "gpu")
        ),
        sa.Column("started_at", sa.Float(), nullable=True),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.Column("reason", TEXT, nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("items_by_batch", "items", ["batch_id", "number"])


def downgrade() -> None:
    op.drop_table("items")
    op.drop_table("batches")
