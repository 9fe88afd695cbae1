"""Of users who sign in: the address that the provider has verified."""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None
TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("users", sa.Column("email", TEXT, nullable=True))


def downgrade() -> None:
    op.drop_column("users", "email")
