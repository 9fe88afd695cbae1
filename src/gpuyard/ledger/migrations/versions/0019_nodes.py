"""Machines that join: invitations, certificates, and which nodes get no new jobs."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None
TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")
_OF_NODES = {"version": TEXT, "cordoned": sa.Boolean(), "certificate": TEXT}
_TEXTS = ("name", "sha256", "used_from", "node_id")
_TIMES = ("created_at", "expires_at", "used_at")


def upgrade() -> None:
    for name, kind in _OF_NODES.items():
        op.add_column("nodes", sa.Column(name, kind, nullable=True))
    op.create_table(
        "invitations",
        sa.Column("id", TEXT, nullable=False),
        *(sa.Column(name, TEXT, nullable=True) for name in _TEXTS),
        *(sa.Column(name, sa.Float(), nullable=True) for name in _TIMES),
        sa.PrimaryKeyConstraint("id"),
    )


def downgrade() -> None:
    op.drop_table("invitations")
    for name in _OF_NODES:
        op.drop_column("nodes", name)
