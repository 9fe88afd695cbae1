"""With what each attempt ran: host, driver, Python, packages."""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("attempts", sa.Column("facts", sa.JSON()))


def downgrade() -> None:
    op.drop_column("attempts", "facts")
