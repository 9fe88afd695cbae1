"""The database schema, the same in SQLite and PostgreSQL. Times are UTC seconds."""

import sqlalchemy as sa

SCHEMA_VERSION = 1
metadata = sa.MetaData()
# Text is sorted by its bytes in both. SQLite needs INTEGER for automatic numbers.
TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")
NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
TIME = sa.Float

versions = sa.Table(
    "versions", metadata, sa.Column("version", sa.Integer, primary_key=True)
)

# `blob`: the SHA-256 of its prompt file. `used_at`: when an executor first got it. A
# retired series is not sampled any more.
series = sa.Table(
    "series",
    metadata,
    sa.Column("id", TEXT, primary_key=True),
    sa.Column("gpu_class", TEXT, nullable=False),
    sa.Column("blob", TEXT, nullable=False),
    sa.Column("created_at", TIME, nullable=False),
    sa.Column("generator_version", sa.SmallInteger, nullable=False),
    sa.Column("used_at", TIME),
    sa.Column("retired_at", TIME),
    sa.Index("series_by_class", "gpu_class", "created_at"),
    sa.Index("series_by_blob", "blob"),
)

# The seed is secret until the barrier of the one batch that uses the workload; then the
# workload is retired.
workloads = sa.Table(
    "workloads",
    metadata,
    sa.Column("id", TEXT, primary_key=True),
    sa.Column("gpu_class", TEXT, nullable=False),
    sa.Column("seed", sa.BigInteger, nullable=False),
    sa.Column("blob", TEXT, nullable=False),
    sa.Column("created_at", TIME, nullable=False),
    sa.Column("finished_at", TIME),
    sa.Column("batch_id", TEXT),
    sa.Column("retired_at", TIME),
    sa.Index("workloads_by_class", "gpu_class", "finished_at"),
    sa.Index("workloads_by_batch", "batch_id"),
    sa.Index("workloads_by_blob", "blob"),
)

# `check_id` is null while the sample is unused; once set it never changes.
samples = sa.Table(
    "samples",
    metadata,
    sa.Column("id", TEXT, primary_key=True),
    sa.Column("series_id", TEXT, sa.ForeignKey(series.c.id), nullable=False),
    sa.Column("workload_id", TEXT, sa.ForeignKey(workloads.c.id), nullable=False),
    sa.Column("check_id", TEXT),
    sa.Column("created_at", TIME, nullable=False),
    sa.UniqueConstraint("workload_id", "series_id"),
    sa.Index("samples_by_series", "series_id"),
)

prompts = sa.Table(
    "prompts",
    metadata,
    sa.Column("sample_id", TEXT, sa.ForeignKey(samples.c.id), primary_key=True),
    sa.Column("content", TEXT, nullable=False),
    sa.Column("answer", TEXT),
)

batches = sa.Table(
    "batches",
    metadata,
    sa.Column("id", TEXT, primary_key=True),
    sa.Column("holder", TEXT, nullable=False),
    sa.Column("created_at", TIME, nullable=False),
    sa.Column("released_at", TIME),
    sa.Column("ended_at", TIME),
    sa.Column("outcome", TEXT),
    sa.Index("batches_by_end", "ended_at"),
)

# `delivery`: how the executor gets the seed. `sample_id` is no foreign key, because
# samples are removed and checks are kept.
checks = sa.Table(
    "checks",
    metadata,
    sa.Column("id", TEXT, primary_key=True),
    sa.Column("batch_id", TEXT, sa.ForeignKey(batches.c.id), nullable=False),
    sa.Column("executor", TEXT, nullable=False),
    sa.Column("gpu_class", TEXT, nullable=False),
    sa.Column("sample_id", TEXT, nullable=False, unique=True),
    sa.Column("job_id", TEXT),
    sa.Column("state", TEXT, nullable=False),
    sa.Column("outcome", TEXT),
    sa.Column("reason", TEXT),
    sa.Column("delivery", TEXT),
    sa.Column("created_at", TIME, nullable=False),
    sa.Column("ready_at", TIME),
    sa.Column("released_at", TIME),
    sa.Column("hashed_at", TIME),
    sa.Column("sha256", TEXT),
    sa.Column("answered_at", TIME),
    sa.Column("solve_s", sa.Float),
    sa.Column("claims", sa.JSON),
    sa.Column("scored", sa.Boolean, nullable=False),
    sa.Index("checks_by_batch", "batch_id"),
    sa.Index("checks_by_executor", "executor", "created_at"),
)

executors = sa.Table(
    "executors",
    metadata,
    sa.Column("name", TEXT, primary_key=True),
    sa.Column("gpu_class", TEXT, nullable=False),
    sa.Column("alpha", sa.Float, nullable=False),
    sa.Column("beta", sa.Float, nullable=False),
    sa.Column("updated_at", TIME, nullable=False),
    sa.Column("quarantined_until", TIME),
    sa.Column("repeats", sa.Integer, nullable=False),
)

# The calibration of a class, such as `solve_s`, `prepare_s` and `claims_s`.
ranges = sa.Table(
    "ranges",
    metadata,
    sa.Column("gpu_class", TEXT, primary_key=True),
    sa.Column("name", TEXT, primary_key=True),
    sa.Column("low", sa.Float, nullable=False),
    sa.Column("high", sa.Float, nullable=False),
    sa.Column("calibrated_at", TIME, nullable=False),
)

# What the trusted executor of a class said of its engine: when it was accepted, and
# when it ran last.
trusted_runtimes = sa.Table(
    "trusted_runtimes",
    metadata,
    sa.Column("gpu_class", TEXT, primary_key=True),
    sa.Column("accepted", sa.JSON, nullable=False),
    sa.Column("newest", sa.JSON, nullable=False),
)

events = sa.Table(
    "events",
    metadata,
    sa.Column("seq", NUMBER, primary_key=True, autoincrement=True),
    sa.Column("at", TIME, nullable=False),
    sa.Column("kind", TEXT, nullable=False),
    sa.Column("subtype", TEXT, nullable=False),
    sa.Column("gpu_class", TEXT, nullable=False),
    sa.Column("data", sa.JSON, nullable=False),
    sa.Index("events_by_class", "gpu_class", "subtype", "at"),
    sa.Index("events_by_time", "at"),
    sqlite_autoincrement=True,
)

leases = sa.Table(
    "leases",
    metadata,
    sa.Column("name", TEXT, primary_key=True),
    sa.Column("holder", TEXT, nullable=False),
    sa.Column("until", TIME, nullable=False),
)

receipts = sa.Table(
    "receipts",
    metadata,
    sa.Column("id", TEXT, primary_key=True),
    sa.Column("at", TIME, nullable=False),
)

# Blobs about to be stored, until a row names them. So the files of a process that was
# killed are found.
uploads = sa.Table(
    "uploads",
    metadata,
    sa.Column("blob", TEXT, primary_key=True),
    sa.Column("at", TIME, nullable=False),
)
