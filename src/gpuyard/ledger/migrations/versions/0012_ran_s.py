"""How long each attempt ran, measured by a clock that nobody sets."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("attempts", sa.Column("ran_s", sa.Float(), nullable=True))


def downgrade() -> None:
    op.drop_column("attempts", "ran_s")
