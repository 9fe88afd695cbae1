"""Schedules: jobs that are submitted again and again."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None
TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")
_TEXTS = ("name", "state", "cron", "timezone", "overlap", "last_job_id", "problem")
_TIMES = ("starting_deadline_s", "created_at", "seen_at", "next_at", "last_at")


def upgrade() -> None:
    op.create_table(
        "schedules",
        sa.Column("id", TEXT, nullable=False),
        *(sa.Column(name, TEXT, nullable=True) for name in _TEXTS),
        *(sa.Column(name, sa.Float(), nullable=True) for name in _TIMES),
        sa.Column("spec", sa.JSON(), nullable=True),
        sa.Column("warnings", sa.JSON(), nullable=True),
        sa.Column("idempotency_key", TEXT, nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("idempotency_key"),
    )


def downgrade() -> None:
    op.drop_table("schedules")
