"""A GPU can be drained: it keeps what it has and gets nothing new.

A model can be pinned.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None
TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("gpus", sa.Column("draining", sa.Boolean(), nullable=True))
    op.create_table(
        "models",
        sa.Column("name", TEXT, nullable=False),
        sa.Column("pinned", sa.Boolean(), nullable=True),
        sa.PrimaryKeyConstraint("name"),
    )


def downgrade() -> None:
    op.drop_table("models")
    op.drop_column("gpus", "draining")
