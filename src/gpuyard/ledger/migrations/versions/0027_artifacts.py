"""Artifacts."""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None
INTEGER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "artifacts",
        sa.Column("id", TEXT, primary_key=True),
        sa.Column("job_id", TEXT),
        sa.Column("attempt_id", TEXT),
        sa.Column("path", TEXT),
        sa.Column("size", INTEGER),
        sa.Column("sha256", TEXT),
        sa.Column("kept", sa.Boolean()),
        sa.Column("created_at", sa.Float()),
    )
    op.create_index("ix_artifacts_job_id", "artifacts", ["job_id"])
    op.create_index("ix_artifacts_sha256", "artifacts", ["sha256"])


def downgrade() -> None:
    op.drop_table("artifacts")
