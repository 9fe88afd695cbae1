"""Trust: what was found out about places where jobs run."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None
TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "trust",
        sa.Column("place", TEXT, nullable=False),
        *(
            sa.Column(name, sa.Float(), nullable=True)
            for name in ("score", "quarantined_until", "updated_at")
        ),
        sa.Column("reason", TEXT, nullable=True),
        sa.PrimaryKeyConstraint("place"),
    )


def downgrade() -> None:
    op.drop_table("trust")
