"""Deadlines of the jobs of schedules."""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("schedules", sa.Column("deadline_s", sa.Float(), nullable=True))


def downgrade() -> None:
    op.drop_column("schedules", "deadline_s")
