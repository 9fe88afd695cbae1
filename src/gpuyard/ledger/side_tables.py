"""The tables beside the state: no event changes their rows."""

import sqlalchemy as sa

from gpuyard.ledger.columns import INTEGER, TEXT, metadata

# Series are measurements, not state. The key makes a log that is read twice harmless.
points = sa.Table(
    "points",
    metadata,
    sa.Column("attempt_id", TEXT, primary_key=True),
    sa.Column("name", TEXT, primary_key=True),
    sa.Column("n", INTEGER, primary_key=True),
    sa.Column("job_id", TEXT, nullable=False),
    sa.Column("step", INTEGER),
    sa.Column("value", sa.Float, nullable=False),
    sa.Column("at", sa.Float, nullable=False),
    sa.Index("points_by_job", "job_id", "name"),
    sqlite_with_rowid=False,
)

progress = sa.Table(
    "progress",
    metadata,
    sa.Column("job_id", TEXT, primary_key=True),
    sa.Column("body", sa.JSON, nullable=False),
)

# Small things that outlive a server, by name, such as how far each webhook has been
# told.
notes = sa.Table(
    "notes",
    metadata,
    sa.Column("name", TEXT, primary_key=True),
    sa.Column("body", sa.JSON, nullable=False),
)

# The journal without its oldest events: for each row that a pruned event changed, the
# whole row as it was after some later event, packed (`images.py`). A row that was
# removed has none.
row_images = sa.Table(
    "row_images",
    metadata,
    sa.Column("table", TEXT, primary_key=True),
    sa.Column("key", TEXT, primary_key=True),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sqlite_with_rowid=False,
)

# Up to which event the journal is pruned, in a single row.
pruned = sa.Table(
    "pruned",
    metadata,
    sa.Column("name", TEXT, primary_key=True),
    sa.Column("seq", INTEGER, nullable=False),
)
JOURNAL = "journal"

# Who may write, in a single row. Each commit group locks it: that gives groups their
# order, and a server that was thought dead finds another's epoch there. The epoch is
# part of the key, so that only a change of it waits for writers.
lease = sa.Table(
    "lease",
    metadata,
    sa.Column("name", TEXT, primary_key=True),
    sa.Column("epoch", INTEGER, primary_key=True, autoincrement=False),
    sa.Column("holder", TEXT),
    sa.Column("url", TEXT),
    sa.Column("expires_at", sa.DateTime(timezone=True)),
)
LEASE = "server"

# The servers that share a PostgreSQL ledger. A token stands here only as a digest, by
# which the others know it. `loopback` says which host a URL such as http://127.0.0.1
# means.
servers = sa.Table(
    "servers",
    metadata,
    sa.Column("id", TEXT, primary_key=True),
    sa.Column("url", TEXT, nullable=False),
    sa.Column("token_sha256", TEXT, nullable=False),
    sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
    sa.Column("loopback", TEXT),
)

# What jobs take along from their submission, by its hash: for servers that share a
# PostgreSQL ledger (`contents.py`). Of one server, it is in files of its home.
contents = sa.Table(
    "contents",
    metadata,
    sa.Column("kind", TEXT, primary_key=True),
    sa.Column("digest", TEXT, primary_key=True),
    sa.Column("size", INTEGER, nullable=False),
    sa.Column("complete", sa.Boolean, nullable=False),
    sa.Column("stored_at", sa.Float, nullable=False),
)
content_parts = sa.Table(
    "content_parts",
    metadata,
    sa.Column("kind", TEXT, primary_key=True),
    sa.Column("digest", TEXT, primary_key=True),
    sa.Column("number", INTEGER, primary_key=True, autoincrement=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.ForeignKeyConstraint(
        ["kind", "digest"], ["contents.kind", "contents.digest"], ondelete="CASCADE"
    ),
)

# What clients have found and left here for others to see: verdicts of checks, and
# rankings of studies. `about`: the executor, or the study. `file` is packed.
results = sa.Table(
    "results",
    metadata,
    sa.Column("kind", TEXT, primary_key=True),
    sa.Column("id", TEXT, primary_key=True),
    sa.Column("about", TEXT, nullable=False),
    sa.Column("project", TEXT),
    sa.Column("owner", TEXT),
    sa.Column("recorded_at", sa.Float, nullable=False),
    sa.Column("body", sa.JSON, nullable=False),
    sa.Column("file", sa.LargeBinary),
)
