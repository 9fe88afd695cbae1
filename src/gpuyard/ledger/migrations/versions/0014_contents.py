"""Contents: what jobs take along from their submission."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None
INTEGER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "contents",
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("digest", TEXT, nullable=False),
        sa.Column("size", INTEGER, nullable=False),
        sa.Column("complete", sa.Boolean(), nullable=False),
        sa.Column("stored_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "digest"),
    )
    op.create_table(
        "content_parts",
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("digest", TEXT, nullable=False),
        sa.Column("number", INTEGER, autoincrement=False, nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "digest", "number"),
        sa.ForeignKeyConstraint(
            ["kind", "digest"],
            ["contents.kind", "contents.digest"],
            ondelete="CASCADE",
        ),
    )


def downgrade() -> None:
    op.drop_table("content_parts")
    op.drop_table("contents")
