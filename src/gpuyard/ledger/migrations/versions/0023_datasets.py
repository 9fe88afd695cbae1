"""Datasets and their versions."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None
INTEGER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "datasets",
        sa.Column("id", TEXT, primary_key=True),
        sa.Column("project", TEXT),
        sa.Column("name", TEXT),
        sa.Column("owner", TEXT),
        sa.Column("created_at", sa.Float()),
        sa.Column("shared_with", sa.JSON()),
        sa.Column("last_version", INTEGER),
    )
    op.create_table(
        "dataset_versions",
        sa.Column("id", TEXT, primary_key=True),
        sa.Column("dataset", TEXT),
        sa.Column("number", INTEGER),
        sa.Column("digest", TEXT),
        sa.Column("size", INTEGER),
        sa.Column("files", INTEGER),
        sa.Column("created_at", sa.Float()),
        sa.Column("created_by", TEXT),
    )
    op.create_index("versions_by_dataset", "dataset_versions", ["dataset", "number"])


def downgrade() -> None:
    op.drop_table("dataset_versions")
    op.drop_table("datasets")
