"""When jobs should have ended, and what their owners were told of that."""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None
INTEGER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.add_column("jobs", sa.Column("deadline", sa.Float(), nullable=True))
    op.add_column("jobs", sa.Column("deadline_told", INTEGER, nullable=True))


def downgrade() -> None:
    op.drop_column("jobs", "deadline_told")
    op.drop_column("jobs", "deadline")
