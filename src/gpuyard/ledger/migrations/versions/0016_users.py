"""Users and their tokens, and whose a job is."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None
TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")
_TOKEN_TEXTS = ("user", "name", "role", "sha256")


def upgrade() -> None:
    op.create_table(
        "users",
        sa.Column("name", TEXT, nullable=False),
        sa.Column("role", TEXT, nullable=True),
        sa.Column("disabled", sa.Boolean(), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "tokens",
        sa.Column("id", TEXT, nullable=False),
        *(sa.Column(name, TEXT, nullable=True) for name in _TOKEN_TEXTS),
        sa.Column("created_at", sa.Float(), nullable=True),
        sa.Column("expires_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.add_column("jobs", sa.Column("owner", TEXT, nullable=True))


def downgrade() -> None:
    op.drop_column("jobs", "owner")
    op.drop_table("tokens")
    op.drop_table("users")
