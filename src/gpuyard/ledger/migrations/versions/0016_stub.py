"""Nothing yet: another branch adds this migration."""

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nothing."""


def downgrade() -> None:
    """Nothing."""
