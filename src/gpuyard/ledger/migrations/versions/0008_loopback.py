"""Which host a server means by a URL of its own loopback."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None
TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("servers", sa.Column("loopback", TEXT, nullable=True))


def downgrade() -> None:
    op.drop_column("servers", "loopback")
