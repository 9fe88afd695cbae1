"""Nodes of pools: machines that are rented ahead and join."""

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None
TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")
_LIVE = sa.text("state <> 'gone'")


def upgrade() -> None:
    op.create_table(
        "pool_nodes",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("pool", TEXT, nullable=True),
        sa.Column("provider", TEXT, nullable=True),
        sa.Column("state", TEXT, nullable=True),
        sa.Column("size", TEXT, nullable=True),
        sa.Column("name", TEXT, nullable=True),
        sa.Column("reference", TEXT, nullable=True),
        sa.Column("node_id", TEXT, nullable=True),
        sa.Column("price_per_hour", TEXT, nullable=True),
        sa.Column("currency", TEXT, nullable=True),
        sa.Column("asked_at", sa.Float(), nullable=True),
        sa.Column("began_at", sa.Float(), nullable=True),
        sa.Column("joined_at", sa.Float(), nullable=True),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.Column("why", TEXT, nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(
        "pool_nodes_live",
        "pool_nodes",
        ["pool"],
        sqlite_where=_LIVE,
        postgresql_where=_LIVE,
    )


def downgrade() -> None:
    op.drop_index("pool_nodes_live", table_name="pool_nodes")
    op.drop_table("pool_nodes")
