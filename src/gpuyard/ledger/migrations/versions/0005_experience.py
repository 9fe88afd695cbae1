"""What was learned of models: how long they take to move, and when they are asked
for.
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None
INTEGER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "timings",
        sa.Column("id", TEXT, nullable=False),
        *(
            sa.Column(name, TEXT, nullable=True)
            for name in ("name", "move", "gpu_class")
        ),
        *(sa.Column(name, sa.Float(), nullable=True) for name in ("seconds", "at")),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "habits",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("model", TEXT, nullable=True),
        *(sa.Column(name, INTEGER, nullable=True) for name in ("slot", "day")),
        sa.Column("share", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )


def downgrade() -> None:
    op.drop_table("habits")
    op.drop_table("timings")
