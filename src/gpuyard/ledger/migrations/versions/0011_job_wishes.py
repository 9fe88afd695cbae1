"""What the owner of a job wishes: that it is held, after which ends of other jobs it
starts, and after which ends of its own it is tried again.
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("held", sa.Boolean(), nullable=True))
    op.add_column("jobs", sa.Column("parent_ends", sa.JSON(), nullable=True))
    op.add_column("jobs", sa.Column("retry_on", sa.JSON(), nullable=True))


def downgrade() -> None:
    for name in ("retry_on", "parent_ends", "held"):
        op.drop_column("jobs", name)
