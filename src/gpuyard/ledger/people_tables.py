"""The tables of people: users, tokens, projects, and what is theirs."""

import sqlalchemy as sa

from gpuyard.ledger.columns import INTEGER, TEXT, metadata, partial_index

# Who may use the instance, besides its owner, and their tokens. Of a token, only the
# digest stands here (`config/proof.py`).
users = sa.Table(
    "users",
    metadata,
    sa.Column("name", TEXT, primary_key=True),
    sa.Column("role", TEXT),
    sa.Column("disabled", sa.Boolean),
    sa.Column("created_at", sa.Float),
    sa.Column("issuer", TEXT),
    sa.Column("subject", TEXT),
    sa.Column("awaits_sign_in", sa.Boolean),
    sa.Column("role_from_provider", sa.Boolean),
    sa.Column("project", TEXT),
    sa.Column("email", TEXT),
)
tokens = sa.Table(
    "tokens",
    metadata,
    sa.Column("id", TEXT, primary_key=True),
    sa.Column("user", TEXT),
    sa.Column("name", TEXT),
    sa.Column("role", TEXT),
    sa.Column("sha256", TEXT),
    sa.Column("created_at", sa.Float),
    sa.Column("expires_at", sa.Float),
    sa.Column("kind", TEXT),
)

# Projects that somebody has registered, and what users may do in them. The id of a
# member is `PROJECT/USER`.
projects = sa.Table(
    "projects",
    metadata,
    sa.Column("name", TEXT, primary_key=True),
    sa.Column("private", sa.Boolean),
    sa.Column("created_at", sa.Float),
)
project_members = sa.Table(
    "project_members",
    metadata,
    sa.Column("id", TEXT, primary_key=True),
    sa.Column("project", TEXT),
    sa.Column("user", TEXT),
    sa.Column("role", TEXT),
)

# What may be spent, by a project or by an owner. `told`: which share (percent) of it
# was last told to be used, in the period that began at `told_of`.
budgets = sa.Table(
    "budgets",
    metadata,
    sa.Column("name", TEXT, primary_key=True),
    sa.Column("project", TEXT),
    sa.Column("owner", TEXT),
    sa.Column("period", TEXT),
    sa.Column("amount", TEXT),
    sa.Column("currency", TEXT),
    sa.Column("hard", sa.Boolean),
    sa.Column("timezone", TEXT),
    sa.Column("created_at", sa.Float),
    sa.Column("told_of", sa.Float),
    sa.Column("told", INTEGER),
)

# GPUs, or a node, that a project or an owner has from one time to another. Without
# `gpus`, it is all of the node. `told`: its begin was announced.
reservations = sa.Table(
    "reservations",
    metadata,
    sa.Column("id", TEXT, primary_key=True),
    sa.Column("project", TEXT),
    sa.Column("owner", TEXT),
    sa.Column("gpus", INTEGER),
    sa.Column("gpu_class", TEXT),
    sa.Column("node", TEXT),
    sa.Column("begins_at", sa.Float),
    sa.Column("ends_at", sa.Float),
    sa.Column("timezone", TEXT),
    sa.Column("created_at", sa.Float),
    sa.Column("created_by", TEXT),
    sa.Column("told", INTEGER),
)

# For how long a GPU of a reservation was used by nobody, and what that was worth, at
# the list price. `ran_s` and `cost` are NULL while that goes on, until `reserved_until`
# at most.
unused_gpus = sa.Table(
    "unused_gpus",
    metadata,
    sa.Column("id", TEXT, primary_key=True),
    sa.Column("reservation", TEXT),
    sa.Column("project", TEXT),
    sa.Column("owner", TEXT),
    sa.Column("provider", TEXT),
    sa.Column("uuid", TEXT),
    sa.Column("gpu", TEXT),
    sa.Column("tier", TEXT),
    sa.Column("price_per_hour", TEXT),
    sa.Column("currency", TEXT),
    sa.Column("began_at", sa.Float),
    sa.Column("reserved_until", sa.Float),
    sa.Column("ran_s", sa.Float),
    sa.Column("cost", TEXT),
)

# Whom to tell when a job or an array (`job_id`) ends. `told_at`: when that was done, or
# given up because of a `problem`.
IS_UNTOLD = "told_at IS NULL"
notices = sa.Table(
    "notices",
    metadata,
    sa.Column("id", TEXT, primary_key=True),
    sa.Column("job_id", TEXT, index=True),
    sa.Column("address", TEXT),
    sa.Column("owner", TEXT),
    sa.Column("told_at", sa.Float),
    sa.Column("problem", TEXT),
    partial_index(
        "notices_untold",
        "address",
        "id",
        where=IS_UNTOLD,
    ),
)
