"""Reservations of GPUs and nodes."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None
INTEGER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "reservations",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("project", TEXT, nullable=True),
        sa.Column("owner", TEXT, nullable=True),
        sa.Column("gpus", INTEGER, nullable=True),
        sa.Column("gpu_class", TEXT, nullable=True),
        sa.Column("node", TEXT, nullable=True),
        sa.Column("begins_at", sa.Float(), nullable=True),
        sa.Column("ends_at", sa.Float(), nullable=True),
        sa.Column("timezone", TEXT, nullable=True),
        sa.Column("created_at", sa.Float(), nullable=True),
        sa.Column("created_by", TEXT, nullable=True),
        sa.Column("told", INTEGER, nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )


def downgrade() -> None:
    op.drop_table("reservations")
