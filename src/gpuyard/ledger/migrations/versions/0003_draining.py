"""A GPU can be drained: it keeps what it has and gets nothing new."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("gpus", sa.Column("draining", sa.Boolean(), nullable=True))


def downgrade() -> None:
    op.drop_column("gpus", "draining")
