"""The spine: journal, jobs, attempts, checkpoints, nodes, GPUs, series, snapshots."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None
# SQLite counts a key up only when it is declared INTEGER; PostgreSQL's is too small.
# Text sorts by its bytes in both.
INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "attempts",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("job_id", TEXT, nullable=True),
        sa.Column("number", INTEGER, nullable=True),
        sa.Column("state", TEXT, nullable=True),
        sa.Column("token", INTEGER, nullable=True),
        sa.Column("epoch", INTEGER, nullable=True),
        sa.Column("provider", TEXT, nullable=True),
        sa.Column("provider_ref", TEXT, nullable=True),
        sa.Column("placements", sa.JSON(), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=True),
        sa.Column("started_at", sa.Float(), nullable=True),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.Column("exit_code", INTEGER, nullable=True),
        sa.Column("signal", INTEGER, nullable=True),
        sa.Column("reason", TEXT, nullable=True),
        sa.Column("message", TEXT, nullable=True),
        sa.Column("limits", sa.JSON(), nullable=True),
        sa.Column("usage", sa.JSON(), nullable=True),
        sa.Column("resumed_from", TEXT, nullable=True),
        sa.Column("price_per_hour", TEXT, nullable=True),
        sa.Column("currency", TEXT, nullable=True),
        sa.Column("basis", TEXT, nullable=True),
        sa.Column("tier", TEXT, nullable=True),
        sa.Column("cost", TEXT, nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(op.f("ix_attempts_job_id"), "attempts", ["job_id"], unique=False)
    op.create_index(op.f("ix_attempts_state"), "attempts", ["state"], unique=False)
    op.create_table(
        "checkpoints",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("job_id", TEXT, nullable=True),
        sa.Column("attempt_id", TEXT, nullable=True),
        sa.Column("path", TEXT, nullable=True),
        sa.Column("step", INTEGER, nullable=True),
        sa.Column("size", INTEGER, nullable=True),
        sa.Column("sha256", TEXT, nullable=True),
        sa.Column("directory", sa.Boolean(), nullable=True),
        sa.Column("kept", sa.Boolean(), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(
        op.f("ix_checkpoints_job_id"), "checkpoints", ["job_id"], unique=False
    )
    op.create_index(
        op.f("ix_checkpoints_sha256"), "checkpoints", ["sha256"], unique=False
    )
    op.create_table(
        "counters",
        sa.Column("name", TEXT, nullable=False),
        sa.Column("value", INTEGER, nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "events",
        sa.Column("seq", INTEGER, autoincrement=True, nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("job_id", TEXT, nullable=True),
        sa.Column("changes", sa.JSON(), nullable=False),
        sa.Column("info", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("seq"),
        sqlite_autoincrement=True,
    )
    op.create_index("events_by_job", "events", ["job_id", "seq"], unique=False)
    op.create_table(
        "gpus",
        sa.Column("uuid", TEXT, nullable=False),
        sa.Column("node_id", TEXT, nullable=True),
        sa.Column("index", INTEGER, nullable=True),
        sa.Column("name", TEXT, nullable=True),
        sa.Column("memory_mb", INTEGER, nullable=True),
        sa.Column("compute_capability", TEXT, nullable=True),
        sa.Column("driver", TEXT, nullable=True),
        sa.Column("state", TEXT, nullable=True),
        sa.Column("problem", TEXT, nullable=True),
        sa.PrimaryKeyConstraint("uuid"),
    )
    op.create_index(op.f("ix_gpus_node_id"), "gpus", ["node_id"], unique=False)
    op.create_table(
        "jobs",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=True),
        sa.Column("kind", TEXT, nullable=True),
        sa.Column("state", TEXT, nullable=True),
        sa.Column("reason", TEXT, nullable=True),
        sa.Column("exit_code", INTEGER, nullable=True),
        sa.Column("priority", INTEGER, nullable=True),
        sa.Column("project", TEXT, nullable=True),
        sa.Column("labels", sa.JSON(), nullable=True),
        sa.Column("shape", sa.JSON(), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=True),
        sa.Column("started_at", sa.Float(), nullable=True),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.Column("not_before", sa.Float(), nullable=True),
        sa.Column("timeout_s", sa.Float(), nullable=True),
        sa.Column("estimated_duration_s", sa.Float(), nullable=True),
        sa.Column("preemptible", sa.Boolean(), nullable=True),
        sa.Column("depends_on", sa.JSON(), nullable=True),
        sa.Column("retry_count", INTEGER, nullable=True),
        sa.Column("failures", INTEGER, nullable=True),
        sa.Column("attempts", INTEGER, nullable=True),
        sa.Column("attempt_id", TEXT, nullable=True),
        sa.Column("cancel_requested", sa.Boolean(), nullable=True),
        sa.Column("resume_from", TEXT, nullable=True),
        sa.Column("tier", TEXT, nullable=True),
        sa.Column("idempotency_key", TEXT, nullable=True),
        sa.Column("warnings", sa.JSON(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("idempotency_key"),
    )
    op.create_index("jobs_by_name", "jobs", ["name", "id"], unique=False)
    op.create_index("jobs_by_state", "jobs", ["state", "id"], unique=False)
    op.create_table(
        "nodes",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=True),
        sa.Column("provider", TEXT, nullable=True),
        sa.Column("state", TEXT, nullable=True),
        sa.Column("reason", TEXT, nullable=True),
        sa.Column("boot_id", TEXT, nullable=True),
        sa.Column("cpus", sa.Float(), nullable=True),
        sa.Column("memory_gb", sa.Float(), nullable=True),
        sa.Column("limits", sa.JSON(), nullable=True),
        sa.Column("seen_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "points",
        sa.Column("attempt_id", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("n", INTEGER, nullable=False),
        sa.Column("job_id", TEXT, nullable=False),
        sa.Column("step", INTEGER, nullable=True),
        sa.Column("value", sa.Float(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("attempt_id", "name", "n"),
        sqlite_with_rowid=False,
    )
    op.create_index("points_by_job", "points", ["job_id", "name"], unique=False)
    op.create_table(
        "progress",
        sa.Column("job_id", TEXT, nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("job_id"),
    )
    op.create_table(
        "snapshots",
        sa.Column("seq", INTEGER, nullable=False),
        sa.Column("table", TEXT, nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("seq", "table"),
    )
    op.create_table(
        "specs",
        sa.Column("job_id", TEXT, nullable=False),
        sa.Column("body", sa.JSON(), nullable=True),
        sa.PrimaryKeyConstraint("job_id"),
    )


def downgrade() -> None:
    op.drop_table("specs")
    op.drop_table("snapshots")
    op.drop_table("progress")
    op.drop_index("points_by_job", table_name="points")
    op.drop_table("points")
    op.drop_table("nodes")
    op.drop_index("jobs_by_state", table_name="jobs")
    op.drop_index("jobs_by_name", table_name="jobs")
    op.drop_table("jobs")
    op.drop_index(op.f("ix_gpus_node_id"), table_name="gpus")
    op.drop_table("gpus")
    op.drop_index("events_by_job", table_name="events")
    op.drop_table("events")
    op.drop_table("counters")
    op.drop_index(op.f("ix_checkpoints_sha256"), table_name="checkpoints")
    op.drop_index(op.f("ix_checkpoints_job_id"), table_name="checkpoints")
    op.drop_table("checkpoints")
    op.drop_index(op.f("ix_attempts_state"), table_name="attempts")
    op.drop_index(op.f("ix_attempts_job_id"), table_name="attempts")
    op.drop_table("attempts")
