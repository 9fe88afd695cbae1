"""Results that clients have left: verdicts of checks, and rankings of studies."""

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None
TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "results",
        sa.Column("kind", TEXT, primary_key=True),
        sa.Column("id", TEXT, primary_key=True),
        sa.Column("about", TEXT, nullable=False),
        sa.Column("project", TEXT),
        sa.Column("owner", TEXT),
        sa.Column("recorded_at", sa.Float(), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.Column("file", sa.LargeBinary()),
    )


def downgrade() -> None:
    op.drop_table("results")
