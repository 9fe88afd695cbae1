"""Costs: what a report needs of attempts, and budgets."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None
INTEGER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")
_HAS_ENDED = sa.text("ended_at IS NOT NULL")
_HAS_REASON = sa.text("ended_at IS NOT NULL AND reason IS NOT NULL")
_HAS_ENDED_EARLIER = sa.text("ended_at IS NOT NULL AND gpus IS NULL")
_COLUMNS = {
    "project": TEXT,
    "owner": TEXT,
    "gpu": TEXT,
    "gpus": INTEGER,
    "cpus": sa.Float(),
    "gpu_used": sa.Float(),
}
_OF_A_REPORT = (
    "currency",
    "project",
    "owner",
    "provider",
    "tier",
    "gpu",
    "gpus",
    "cpus",
    "started_at",
    "ended_at",
    "ran_s",
    "reason",
    "gpu_used",
    "cost",
)
_OF_WASTE = (
    "currency",
    "project",
    "owner",
    "provider",
    "tier",
    "gpu",
    "gpus",
    "started_at",
    "ended_at",
    "ran_s",
    "reason",
    "cost",
    "job_id",
    "id",
)


def upgrade() -> None:
    for name, kind in _COLUMNS.items():
        op.add_column("attempts", sa.Column(name, kind, nullable=True))
    op.create_index(
        "attempts_by_cost",
        "attempts",
        list(_OF_A_REPORT),
        sqlite_where=_HAS_ENDED,
        postgresql_where=_HAS_ENDED,
    )
    op.create_index(
        "attempts_by_waste",
        "attempts",
        list(_OF_WASTE),
        sqlite_where=_HAS_REASON,
        postgresql_where=_HAS_REASON,
    )
    op.create_index(
        "attempts_of_earlier_versions",
        "attempts",
        ["job_id"],
        sqlite_where=_HAS_ENDED_EARLIER,
        postgresql_where=_HAS_ENDED_EARLIER,
    )
    op.create_table(
        "budgets",
        sa.Column("name", TEXT, nullable=False),
        sa.Column("project", TEXT, nullable=True),
        sa.Column("owner", TEXT, nullable=True),
        sa.Column("period", TEXT, nullable=True),
        sa.Column("amount", TEXT, nullable=True),
        sa.Column("currency", TEXT, nullable=True),
        sa.Column("hard", sa.Boolean(), nullable=True),
        sa.Column("timezone", TEXT, nullable=True),
        sa.Column("created_at", sa.Float(), nullable=True),
        sa.Column("told_of", sa.Float(), nullable=True),
        sa.Column("told", INTEGER, nullable=True),
        sa.PrimaryKeyConstraint("name"),
    )


def downgrade() -> None:
    op.drop_table("budgets")
    op.drop_index("attempts_of_earlier_versions", "attempts")
    op.drop_index("attempts_by_waste", "attempts")
    op.drop_index("attempts_by_cost", "attempts")
    for name in _COLUMNS:
        op.drop_column("attempts", name)
