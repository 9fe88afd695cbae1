"""The journal and the state, in SQLAlchemy Core. State tables mirror the rows that
events carry; only `apply` writes them.

Columns are nullable but for keys: an event names the columns it changes, and an upsert
that names a few would otherwise be refused for the others before the conflict is even
seen (SQLite checks NOT NULL first).
"""

from collections.abc import Mapping

import sqlalchemy as sa

from gpuyard.domain.events import Table
from gpuyard.ledger.columns import INTEGER, TEXT, metadata, partial_index
from gpuyard.ledger.people_tables import (
    budgets,
    notices,
    project_members,
    projects,
    reservations,
    tokens,
    unused_gpus,
    users,
)

events = sa.Table(
    "events",
    metadata,
    sa.Column("seq", INTEGER, primary_key=True, autoincrement=True),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("kind", TEXT, nullable=False),
    sa.Column("job_id", TEXT),
    sa.Column("changes", sa.JSON, nullable=False),
    sa.Column("info", sa.JSON, nullable=False),
    sa.Index("events_by_job", "job_id", "seq"),
    sqlite_autoincrement=True,
)

# The last four characters of an id, in words that both databases know.
JOB_TAIL = "substr(id, length(id) - 3)"

HAS_PARENTS = "CAST(depends_on AS TEXT) <> '[]'"
IS_TASK = "array_id IS NOT NULL"
HAS_ENDED = "ended_at IS NOT NULL"
HAS_REASON = "ended_at IS NOT NULL AND reason IS NOT NULL"
_OF_A_REPORT = (
    "currency project owner provider tier gpu gpus cpus started_at"
    " ended_at ran_s reason gpu_used cost"
)
_OF_WASTE = (
    "currency project owner provider tier gpu gpus started_at ended_at"
    " ran_s reason cost job_id id"
)
HAS_ENDED_EARLIER = "ended_at IS NOT NULL AND gpus IS NULL"

jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("id", TEXT, primary_key=True),
    sa.Column("name", TEXT),
    sa.Column("kind", TEXT),
    sa.Column("state", TEXT),
    sa.Column("reason", TEXT),
    sa.Column("exit_code", INTEGER),
    sa.Column("priority", INTEGER),
    sa.Column("project", TEXT),
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
    sa.Column("retry_count", INTEGER),
    sa.Column("failures", INTEGER),
    sa.Column("attempts", INTEGER),
    sa.Column("attempt_id", TEXT),
    sa.Column("cancel_requested", sa.Boolean),
    sa.Column("resume_from", TEXT),
    sa.Column("tier", TEXT),
    sa.Column("idempotency_key", TEXT, unique=True),
    sa.Column("warnings", sa.JSON),
    # NULL in these three: the default.
    sa.Column("held", sa.Boolean),
    sa.Column("parent_ends", sa.JSON),
    sa.Column("retry_on", sa.JSON),
    # Of the tasks of arrays only.
    sa.Column("array_id", TEXT),
    sa.Column("array_index", INTEGER),
    # Who submitted it; NULL: the owner of the instance.
    sa.Column("owner", TEXT),
    # When it should have ended (UTC seconds), and what its owner was told of that:
    # NULL nothing, 1 that it will be late, 2 that it is.
    sa.Column("deadline", sa.Float),
    sa.Column("deadline_told", INTEGER),
    sa.Index("jobs_by_state", "state", "id"),
    # The last two: to find the newest job of a name that is one's own, or that one
    # may see, without a look at any row.
    sa.Index("jobs_by_name", "name", "id", "owner", "project"),
    sa.Index("jobs_by_project", "project", "id"),
    # People shorten ids from the end, where they differ.
    sa.Index("jobs_by_tail", sa.text(f"({JOB_TAIL})")),
    # Few jobs depend on others; retention asks which.
    partial_index(
        "jobs_with_parents",
        "id",
        where=HAS_PARENTS,
    ),
    partial_index(
        "jobs_by_array",
        "array_id",
        "array_index",
        where=IS_TASK,
    ),
)

# One job with many tasks. `tasks` are the indices as given, `total` their number;
# `at_most` may run at once, NULL for any number. Its spec is that of its tasks, and
# stands under its id.
arrays = sa.Table(
    "arrays",
    metadata,
    sa.Column("id", TEXT, primary_key=True),
    sa.Column("name", TEXT),
    sa.Column("tasks", TEXT),
    sa.Column("total", INTEGER),
    sa.Column("at_most", INTEGER),
    sa.Column("priority", INTEGER),
    sa.Column("project", TEXT),
    sa.Column("labels", sa.JSON),
    sa.Column("warnings", sa.JSON),
    sa.Column("idempotency_key", TEXT, unique=True),
    sa.Column("created_at", sa.Float),
    sa.Index("arrays_by_name", "name", "id"),
)

specs = sa.Table(
    "specs",
    metadata,
    sa.Column("job_id", TEXT, primary_key=True),
    sa.Column("body", sa.JSON),
)

attempts = sa.Table(
    "attempts",
    metadata,
    sa.Column("id", TEXT, primary_key=True),
    sa.Column("job_id", TEXT, index=True),
    sa.Column("number", INTEGER),
    sa.Column("state", TEXT, index=True),
    sa.Column("token", INTEGER),
    sa.Column("epoch", INTEGER),
    sa.Column("provider", TEXT),
    sa.Column("provider_ref", TEXT),
    sa.Column("placements", sa.JSON),
    sa.Column("created_at", sa.Float),
    sa.Column("started_at", sa.Float),
    sa.Column("ended_at", sa.Float),
    sa.Column("ran_s", sa.Float),
    sa.Column("exit_code", INTEGER),
    sa.Column("signal", INTEGER),
    sa.Column("reason", TEXT),
    sa.Column("message", TEXT),
    sa.Column("limits", sa.JSON),
    sa.Column("usage", sa.JSON),
    sa.Column("resumed_from", TEXT),
    sa.Column("price_per_hour", TEXT),
    sa.Column("currency", TEXT),
    sa.Column("basis", TEXT),
    sa.Column("tier", TEXT),
    sa.Column("cost", TEXT),
    # Whose it is and what it books, as it was at its intent: so a report needs no jobs.
    # NULL in all of these: an earlier version made the row.
    sa.Column("project", TEXT),
    sa.Column("owner", TEXT),
    sa.Column("gpu", TEXT),
    sa.Column("gpus", INTEGER),
    sa.Column("cpus", sa.Float),
    # How busy its GPUs were on average, from 0 to 1; NULL if nobody measured.
    sa.Column("gpu_used", sa.Float),
    # With what it ran: host, driver, Python and so on; NULL without a record.
    sa.Column("facts", sa.JSON),
    # In the order in which reports group, and with all that they read.
    partial_index(
        "attempts_by_cost",
        *_OF_A_REPORT.split(),
        where=HAS_ENDED,
    ),
    # The same of those that may have been waste.
    partial_index(
        "attempts_by_waste",
        *_OF_WASTE.split(),
        where=HAS_REASON,
    ),
    partial_index(
        "attempts_of_earlier_versions",
        "job_id",
        where=HAS_ENDED_EARLIER,
    ),
)

checkpoints = sa.Table(
    "checkpoints",
    metadata,
    sa.Column("id", TEXT, primary_key=True),
    sa.Column("job_id", TEXT, index=True),
    sa.Column("attempt_id", TEXT),
    sa.Column("path", TEXT),
    sa.Column("step", INTEGER),
    sa.Column("size", INTEGER),
    sa.Column("sha256", TEXT, index=True),
    sa.Column("directory", sa.Boolean),
    sa.Column("kept", sa.Boolean),
    sa.Column("created_at", sa.Float),
)

artifacts = sa.Table(
    "artifacts",
    metadata,
    sa.Column("id", TEXT, primary_key=True),
    sa.Column("job_id", TEXT, index=True),
    sa.Column("attempt_id", TEXT),
    sa.Column("path", TEXT),
    sa.Column("size", INTEGER),
    sa.Column("sha256", TEXT, index=True),
    sa.Column("kept", sa.Boolean),
    sa.Column("created_at", sa.Float),
)

nodes = sa.Table(
    "nodes",
    metadata,
    sa.Column("id", TEXT, primary_key=True),
    sa.Column("name", TEXT),
    sa.Column("provider", TEXT),
    sa.Column("state", TEXT),
    sa.Column("reason", TEXT),
    sa.Column("boot_id", TEXT),
    sa.Column("cpus", sa.Float),
    sa.Column("memory_gb", sa.Float),
    sa.Column("limits", sa.JSON),
    sa.Column("seen_at", sa.Float),
    sa.Column("version", TEXT),
    # It gets no new jobs, because a person said so.
    sa.Column("cordoned", sa.Boolean),
    # Of machines that have joined: the SHA-256 of its certificate; empty once it was
    # removed. NULL: it is a node of a server's home.
    sa.Column("certificate", TEXT),
)

# Invitations to join; of the code only the SHA-256. `node_id`: who has used it.
invitations = sa.Table(
    "invitations",
    metadata,
    sa.Column("id", TEXT, primary_key=True),
    sa.Column("name", TEXT),
    sa.Column("sha256", TEXT),
    sa.Column("created_at", sa.Float),
    sa.Column("expires_at", sa.Float),
    sa.Column("used_at", sa.Float),
    sa.Column("used_from", TEXT),
    sa.Column("node_id", TEXT),
)

# Nodes of pools: rented machines that join. `reference` is the provider's name of the
# machine, `began_at` since when it costs; `why` says why it goes or could not be had.
HAS_NOT_GONE = "state <> 'gone'"
pool_nodes = sa.Table(
    "pool_nodes",
    metadata,
    sa.Column("id", TEXT, primary_key=True),
    sa.Column("pool", TEXT),
    sa.Column("provider", TEXT),
    sa.Column("state", TEXT),
    sa.Column("size", TEXT),
    sa.Column("name", TEXT),
    sa.Column("reference", TEXT),
    sa.Column("node_id", TEXT),
    sa.Column("price_per_hour", TEXT),
    sa.Column("currency", TEXT),
    sa.Column("asked_at", sa.Float),
    sa.Column("began_at", sa.Float),
    sa.Column("joined_at", sa.Float),
    sa.Column("ended_at", sa.Float),
    sa.Column("why", TEXT),
    partial_index("pool_nodes_live", "pool", where=HAS_NOT_GONE),
)

gpus = sa.Table(
    "gpus",
    metadata,
    sa.Column("uuid", TEXT, primary_key=True),
    sa.Column("node_id", TEXT, index=True),
    sa.Column("index", INTEGER),
    sa.Column("name", TEXT),
    sa.Column("memory_mb", INTEGER),
    sa.Column("compute_capability", TEXT),
    sa.Column("driver", TEXT),
    sa.Column("state", TEXT),
    sa.Column("problem", TEXT),
    sa.Column("draining", sa.Boolean),
)

# What people want of models beyond what is configured.
models = sa.Table(
    "models",
    metadata,
    sa.Column("name", TEXT, primary_key=True),
    sa.Column("pinned", sa.Boolean),
)

# How long models took to move: the newest of each kind, over which later ones are
# written.
timings = sa.Table(
    "timings",
    metadata,
    sa.Column("id", TEXT, primary_key=True),
    sa.Column("name", TEXT),
    sa.Column("move", TEXT),
    sa.Column("gpu_class", TEXT),
    sa.Column("seconds", sa.Float),
    sa.Column("at", sa.Float),
)

# At what time of day models are asked for.
demand_shares = sa.Table(
    "habits",
    metadata,
    sa.Column("id", TEXT, primary_key=True),
    sa.Column("model", TEXT),
    sa.Column("slot", INTEGER),
    sa.Column("day", INTEGER),
    sa.Column("share", sa.Float),
)

# What was found out about places where jobs run. A row whose `updated_at` is null was
# forgotten.
trust = sa.Table(
    "trust",
    metadata,
    sa.Column("place", TEXT, primary_key=True),
    sa.Column("score", sa.Float),
    sa.Column("quarantined_until", sa.Float),
    sa.Column("reason", TEXT),
    sa.Column("updated_at", sa.Float),
)

batches = sa.Table(
    "batches",
    metadata,
    sa.Column("id", TEXT, primary_key=True),
    sa.Column("state", TEXT, index=True),
    sa.Column("script", TEXT),
    sa.Column("mode", TEXT),
    sa.Column("source", TEXT),
    sa.Column("results", TEXT),
    sa.Column("args", sa.JSON),
    sa.Column("environment", sa.JSON),
    sa.Column("secrets", sa.JSON),
    sa.Column("priority", INTEGER),
    sa.Column("total", INTEGER),
    sa.Column("reload", sa.JSON),
    sa.Column("problem", TEXT),
    sa.Column("digest", TEXT),
    sa.Column("idempotency_key", TEXT, unique=True),
    sa.Column("created_at", sa.Float),
    sa.Column("began_at", sa.Float),
    sa.Column("ended_at", sa.Float),
)

# The things that a batch is about. An id is its batch's with a number behind it.
items = sa.Table(
    "items",
    metadata,
    sa.Column("id", TEXT, primary_key=True),
    sa.Column("batch_id", TEXT),
    sa.Column("number", INTEGER),
    sa.Column("state", TEXT),
    sa.Column("path", TEXT),
    sa.Column("entry", TEXT),
    sa.Column("seconds", sa.Float),
    sa.Column("args", sa.JSON),
    sa.Column("attempts", INTEGER),
    sa.Column("job_id", TEXT),
    sa.Column("attempt_id", TEXT),
    sa.Column("gpu", TEXT),
    sa.Column("started_at", sa.Float),
    sa.Column("ended_at", sa.Float),
    sa.Column("reason", TEXT),
    sa.Index("items_by_batch", "batch_id", "number"),
    sa.Index("items_by_job", "job_id"),
)

# Jobs that are submitted again and again. `seen_at` is the last time that was dealt
# with; `next_at` is the first one after it, NULL while it is paused.
schedules = sa.Table(
    "schedules",
    metadata,
    sa.Column("id", TEXT, primary_key=True),
    sa.Column("name", TEXT),
    sa.Column("state", TEXT),
    sa.Column("cron", TEXT),
    sa.Column("timezone", TEXT),
    sa.Column("overlap", TEXT),
    sa.Column("starting_deadline_s", sa.Float),
    sa.Column("deadline_s", sa.Float),
    sa.Column("spec", sa.JSON),
    sa.Column("warnings", sa.JSON),
    sa.Column("idempotency_key", TEXT, unique=True),
    sa.Column("created_at", sa.Float),
    sa.Column("seen_at", sa.Float),
    sa.Column("next_at", sa.Float),
    sa.Column("last_at", sa.Float),
    sa.Column("last_job_id", TEXT),
    sa.Column("problem", TEXT),
)

# Datasets, and their versions. The id of a dataset is `PROJECT/NAME`, that of a version
# `PROJECT/NAME@NUMBER`. `last_version` is the highest number that a version has had.
# The row of a dataset that was removed stays, without `created_at`, so that no number
# comes again.
datasets = sa.Table(
    "datasets",
    metadata,
    sa.Column("id", TEXT, primary_key=True),
    sa.Column("project", TEXT),
    sa.Column("name", TEXT),
    sa.Column("owner", TEXT),
    sa.Column("created_at", sa.Float),
    sa.Column("shared_with", sa.JSON),
    sa.Column("last_version", INTEGER),
)
dataset_versions = sa.Table(
    "dataset_versions",
    metadata,
    sa.Column("id", TEXT, primary_key=True),
    sa.Column("dataset", TEXT),
    sa.Column("number", INTEGER),
    sa.Column("digest", TEXT),
    sa.Column("size", INTEGER),
    sa.Column("files", INTEGER),
    sa.Column("created_at", sa.Float),
    sa.Column("created_by", TEXT),
    sa.Index("versions_by_dataset", "dataset", "number"),
)

STATE_TABLES: Mapping[Table, sa.Table] = {
    Table.JOBS: jobs,
    Table.SPECS: specs,
    Table.ATTEMPTS: attempts,
    Table.CHECKPOINTS: checkpoints,
    Table.ARTIFACTS: artifacts,
    Table.NODES: nodes,
    Table.GPUS: gpus,
    Table.MODELS: models,
    Table.BATCHES: batches,
    Table.ITEMS: items,
    Table.TIMINGS: timings,
    Table.DEMAND_SHARES: demand_shares,
    Table.TRUST: trust,
    Table.SCHEDULES: schedules,
    Table.ARRAYS: arrays,
    Table.USERS: users,
    Table.TOKENS: tokens,
    Table.BUDGETS: budgets,
    Table.PROJECTS: projects,
    Table.PROJECT_MEMBERS: project_members,
    Table.RESERVATIONS: reservations,
    Table.UNUSED_GPUS: unused_gpus,
    Table.NOTICES: notices,
    Table.INVITATIONS: invitations,
    Table.DATASETS: datasets,
    Table.DATASET_VERSIONS: dataset_versions,
    Table.POOL_NODES: pool_nodes,
}


def key_column(table: sa.Table) -> sa.Column[str]:
    """The single key column of a state table."""
    (column,) = table.primary_key.columns
    return column
