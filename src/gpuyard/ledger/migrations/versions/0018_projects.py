"""Projects and their members; an index in which a name finds one's own newest job."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None
TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "projects",
        sa.Column("name", TEXT, nullable=False),
        sa.Column("private", sa.Boolean(), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "project_members",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("project", TEXT, nullable=True),
        sa.Column("user", TEXT, nullable=True),
        sa.Column("role", TEXT, nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.drop_index("jobs_by_name", "jobs")
    op.create_index("jobs_by_name", "jobs", ["name", "id", "owner", "project"])


def downgrade() -> None:
    op.drop_index("jobs_by_name", "jobs")
    op.create_index("jobs_by_name", "jobs", ["name", "id"])
    op.drop_table("project_members")
    op.drop_table("projects")
