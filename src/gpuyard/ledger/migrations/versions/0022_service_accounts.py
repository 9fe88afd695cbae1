"""Service accounts: users of one project."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None
TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("users", sa.Column("project", TEXT, nullable=True))


def downgrade() -> None:
    op.drop_column("users", "project")
