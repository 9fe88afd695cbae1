"""Sign-in with OpenID Connect: who a user is to the provider, and kinds of tokens."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None
TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("users", sa.Column("issuer", TEXT, nullable=True))
    op.add_column("users", sa.Column("subject", TEXT, nullable=True))
    op.add_column("users", sa.Column("awaits_sign_in", sa.Boolean(), nullable=True))
    op.add_column("users", sa.Column("role_from_provider", sa.Boolean(), nullable=True))
    op.add_column("tokens", sa.Column("kind", TEXT, nullable=True))


def downgrade() -> None:
    op.drop_column("tokens", "kind")
    for name in ("role_from_provider", "awaits_sign_in", "subject", "issuer"):
        op.drop_column("users", name)
