"""The schema, in SQLAlchemy Core. State tables mirror the rows that events carry; only `apply` writes them.

Columns are nullable but for keys: an event names the columns it changes, and an upsert that names a few would
otherwise be refused for the others before the conflict is even seen (SQLite checks NOT NULL first).
"""

from collections.abc import Mapping

import sqlalchemy as sa

from gpuyard.domain.events import Table

metadata = sa.MetaData()
# SQLite counts a key up only when it is declared INTEGER.
BigKey = sa.BigInteger().with_variant(sa.Integer, "sqlite")

events = sa.Table(
    "events",
    metadata,
    sa.Column("seq", BigKey, primary_key=True, autoincrement=True),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("kind", sa.String, nullable=False),
    sa.Column("job_id", sa.String),
    sa.Column("changes", sa.JSON, nullable=False),
    sa.Column("info", sa.JSON, nullable=False),
    sa.Index("events_by_job", "job_id", "seq"),
    sqlite_autoincrement=True,
)

jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("id", sa.String, primary_key=True),
    sa.Column("name", sa.String),
    sa.Column("kind", sa.String),
    sa.Column("state", sa.String),
    sa.Column("reason", sa.String),
    sa.Column("exit_code", sa.Integer),
    sa.Column("priority", sa.Integer),
    sa.Column("project", sa.String),
    sa.Column("labels", sa.JSON),
    sa.Column("shape", sa.JSON),
    sa.Column("created_at", sa.Float),
    sa.Column("started_at", sa.Float),
    sa.Column("ended_at", sa.Float),
    sa.Column("not_before", sa.Float),
    sa.Column("timeout_s", sa.Float),
    sa.Column("estimated_duration_s", sa.Float),
    sa.Column("preemptible", sa.Boolean),
    sa.Column("depends_on", sa.JSON),
    sa.Column("retry_count", sa.Integer),
    sa.Column("failures", sa.Integer),
    sa.Column("attempts", sa.Integer),
    sa.Column("attempt_id", sa.String),
    sa.Column("cancel_requested", sa.Boolean),
    sa.Column("resume_from", sa.String),
    sa.Column("tier", sa.String),
    sa.Column("idempotency_key", sa.String, unique=True),
    sa.Column("warnings", sa.JSON),
    sa.Index("jobs_by_state", "state", "id"),
    sa.Index("jobs_by_name", "name", "id"),
)

specs = sa.Table(
    "specs",
    metadata,
    sa.Column("job_id", sa.String, primary_key=True),
    sa.Column("body", sa.JSON),
)

attempts = sa.Table(
    "attempts",
    metadata,
    sa.Column("id", sa.String, primary_key=True),
    sa.Column("job_id", sa.String, index=True),
    sa.Column("number", sa.Integer),
    sa.Column("state", sa.String, index=True),
    sa.Column("token", sa.Integer),
    sa.Column("epoch", sa.Integer),
    sa.Column("provider", sa.String),
    sa.Column("provider_ref", sa.String),
    sa.Column("placements", sa.JSON),
    sa.Column("created_at", sa.Float),
    sa.Column("started_at", sa.Float),
    sa.Column("ended_at", sa.Float),
    sa.Column("exit_code", sa.Integer),
    sa.Column("signal", sa.Integer),
    sa.Column("reason", sa.String),
    sa.Column("message", sa.String),
    sa.Column("limits", sa.JSON),
    sa.Column("usage", sa.JSON),
    sa.Column("resumed_from", sa.String),
    sa.Column("price_per_hour", sa.String),
    sa.Column("currency", sa.String),
    sa.Column("basis", sa.String),
    sa.Column("tier", sa.String),
    sa.Column("cost", sa.String),
)

checkpoints = sa.Table(
    "checkpoints",
    metadata,
    sa.Column("id", sa.String, primary_key=True),
    sa.Column("job_id", sa.String, index=True),
    sa.Column("attempt_id", sa.String),
    sa.Column("path", sa.String),
    sa.Column("step", sa.Integer),
    sa.Column("size", sa.BigInteger),
    sa.Column("sha256", sa.String, index=True),
    sa.Column("directory", sa.Boolean),
    sa.Column("kept", sa.Boolean),
    sa.Column("created_at", sa.Float),
)

nodes = sa.Table(
    "nodes",
    metadata,
    sa.Column("id", sa.String, primary_key=True),
    sa.Column("name", sa.String),
    sa.Column("provider", sa.String),
    sa.Column("state", sa.String),
    sa.Column("reason", sa.String),
    sa.Column("boot_id", sa.String),
    sa.Column("cpus", sa.Float),
    sa.Column("memory_gb", sa.Float),
    sa.Column("limits", sa.JSON),
    sa.Column("seen_at", sa.Float),
)

gpus = sa.Table(
    "gpus",
    metadata,
    sa.Column("uuid", sa.String, primary_key=True),
    sa.Column("node_id", sa.String, index=True),
    sa.Column("index", sa.Integer),
    sa.Column("name", sa.String),
    sa.Column("memory_mb", sa.Integer),
    sa.Column("compute_capability", sa.String),
    sa.Column("driver", sa.String),
    sa.Column("state", sa.String),
    sa.Column("problem", sa.String),
)

# Outside the journal: series are measurements, not state. The key makes a log that is read twice harmless.
points = sa.Table(
    "points",
    metadata,
    sa.Column("attempt_id", sa.String, primary_key=True),
    sa.Column("name", sa.String, primary_key=True),
    sa.Column("n", sa.Integer, primary_key=True),
    sa.Column("job_id", sa.String, nullable=False),
    sa.Column("step", sa.Integer),
    sa.Column("value", sa.Float, nullable=False),
    sa.Column("at", sa.Float, nullable=False),
    sa.Index("points_by_job", "job_id", "name"),
    sqlite_with_rowid=False,
)

progress = sa.Table(
    "progress",
    metadata,
    sa.Column("job_id", sa.String, primary_key=True),
    sa.Column("body", sa.JSON, nullable=False),
)

# One compressed JSON document per state table: the fold of every event up to `seq`, written before they are pruned.
snapshots = sa.Table(
    "snapshots",
    metadata,
    sa.Column("seq", BigKey, primary_key=True),
    sa.Column("table", sa.String, primary_key=True),
    sa.Column("body", sa.LargeBinary, nullable=False),
)

counters = sa.Table(
    "counters",
    metadata,
    sa.Column("name", sa.String, primary_key=True),
    sa.Column("value", sa.BigInteger, nullable=False),
)

STATE_TABLES: Mapping[Table, sa.Table] = {
    Table.JOBS: jobs,
    Table.SPECS: specs,
    Table.ATTEMPTS: attempts,
    Table.CHECKPOINTS: checkpoints,
    Table.NODES: nodes,
    Table.GPUS: gpus,
}


def key_column(table: sa.Table) -> sa.Column[str]:
    """The single key column of a state table."""
    (column,) = table.primary_key.columns
    return column
