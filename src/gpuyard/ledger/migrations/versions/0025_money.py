"""GPUs that are reserved and that nobody uses, and whom to tell of the ends of jobs."""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None
TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")
_IS_UNTOLD = sa.text("told_at IS NULL")


def upgrade() -> None:
    op.create_table(
        "unused_gpus",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("reservation", TEXT, nullable=True),
        sa.Column("project", TEXT, nullable=True),
        sa.Column("owner", TEXT, nullable=True),
        sa.Column("provider", TEXT, nullable=True),
        sa.Column("uuid", TEXT, nullable=True),
        sa.Column("gpu", TEXT, nullable=True),
        sa.Column("tier", TEXT, nullable=True),
        sa.Column("price_per_hour", TEXT, nullable=True),
        sa.Column("currency", TEXT, nullable=True),
        sa.Column("began_at", sa.Float(), nullable=True),
        sa.Column("reserved_until", sa.Float(), nullable=True),
        sa.Column("ran_s", sa.Float(), nullable=True),
        sa.Column("cost", TEXT, nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "notices",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("job_id", TEXT, nullable=True),
        sa.Column("address", TEXT, nullable=True),
        sa.Column("owner", TEXT, nullable=True),
        sa.Column("told_at", sa.Float(), nullable=True),
        sa.Column("problem", TEXT, nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_notices_job_id", "notices", ["job_id"])
    op.create_index(
        "notices_untold",
        "notices",
        ["address", "id"],
        sqlite_where=_IS_UNTOLD,
        postgresql_where=_IS_UNTOLD,
    )


def downgrade() -> None:
    op.drop_table("notices")
    op.drop_table("unused_gpus")
