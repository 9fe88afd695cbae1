"""The lease, which takes over the epoch's counter; the roll of servers; indexes for
lists and endings of ids.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None
INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")
EPOCH = "COALESCE((SELECT value FROM counters WHERE name = 'epoch'), 0)"


def upgrade() -> None:
    op.create_table(
        "lease",
        sa.Column("name", TEXT, nullable=False),
        sa.Column("epoch", INTEGER, autoincrement=False, nullable=False),
        sa.Column("holder", TEXT, nullable=True),
        sa.Column("url", TEXT, nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("name", "epoch"),
    )
    op.execute(f"INSERT INTO lease (name, epoch) VALUES ('server', {EPOCH})")
    op.create_table(
        "servers",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("url", TEXT, nullable=False),
        sa.Column("token_sha256", TEXT, nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.drop_table("counters")
    op.create_index("jobs_by_project", "jobs", ["project", "id"], unique=False)
    op.create_index(
        "jobs_by_tail", "jobs", [sa.text("(substr(id, length(id) - 3))")], unique=False
    )


def downgrade() -> None:
    op.drop_index("jobs_by_tail", table_name="jobs")
    op.drop_index("jobs_by_project", table_name="jobs")
    op.create_table(
        "counters",
        sa.Column("name", TEXT, nullable=False),
        sa.Column("value", INTEGER, nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.execute("INSERT INTO counters (name, value) SELECT 'epoch', epoch FROM lease")
    op.drop_table("servers")
    op.drop_table("lease")
