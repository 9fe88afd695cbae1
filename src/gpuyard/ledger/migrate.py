"""Gives a ledger this version's schema: a new one by its tables, an older one with
Alembic.
"""

from pathlib import Path

import sqlalchemy as sa

from gpuyard.domain.errors import LedgerTooNewError
from gpuyard.ledger.schema import metadata
from gpuyard.ledger.side_tables import LEASE, lease

# The newest revision in migrations/versions. It stands here so that a ledger that is
# new or up to date never imports Alembic: that adds a third of a second to the start,
# and 11 MB to the server for as long as it runs.
HEAD = "0031"
# Where Alembic keeps the revision of a ledger.
_VERSION = "alembic_version"
_KNOWN = frozenset(f"{number:04}" for number in range(1, int(HEAD) + 1))
# PostgreSQL's advisory lock, so that only one of several starting servers migrates; any
# number would do.
_LOCK = 0x67707579617264


def migrate(engine: sa.Engine) -> None:
    """Create or upgrade the schema; LedgerTooNewError when a newer gpuyard wrote it."""
    with engine.connect() as connection:
        if _is_current(connection):
            return
    with engine.begin() as connection:
        if engine.dialect.name == "sqlite":
            # sqlite3 begins no transaction for DDL by itself, and a half-made schema
            # could never be opened.
            connection.exec_driver_sql("BEGIN")
        else:
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
            if _is_current(connection):
                return
        if _has_schema(connection):
            upgrade_schema(connection)
        else:
            create_schema(connection)


def outdated_schema(engine: sa.Engine) -> str | None:
    """The schema of a ledger that `migrate` would change; None when there is none yet,
    or nothing to change.
    """
    with engine.connect() as connection:
        if _is_current(connection):
            return None
        if not _has_schema(connection):
            return None
        return connection.execute(
            sa.text("SELECT version_num FROM alembic_version")
        ).scalar()


def create_schema(connection: sa.Connection) -> None:
    """Make the schema of an empty ledger as all revisions together would."""
    metadata.create_all(connection, checkfirst=False)
    connection.execute(sa.insert(lease).values(name=LEASE, epoch=0))
    version = sa.Table(
        _VERSION,
        sa.MetaData(),
        sa.Column("version_num", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("version_num", name=f"{_VERSION}_pkc"),
    )
    version.create(connection)
    connection.execute(sa.insert(version).values(version_num=HEAD))


def upgrade_schema(connection: sa.Connection, revision: str = "head") -> None:
    """Run the revisions that the ledger lacks, up to `revision`."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    scripts = str(Path(__file__).parent / "migrations")
    config.set_main_option("script_location", scripts.replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def _has_schema(connection: sa.Connection) -> bool:
    return sa.inspect(connection).has_table(_VERSION)


def _is_current(connection: sa.Connection) -> bool:
    if not _has_schema(connection):
        return False
    current = connection.execute(
        sa.text("SELECT version_num FROM alembic_version")
    ).scalar()
    if current is not None and current not in _KNOWN:
        url = connection.engine.url
        name = f"{url.host}:{url.port or 5432}/{url.database}"
        if url.get_backend_name() == "sqlite":
            name = url.database
        raise LedgerTooNewError(
            f"The ledger {name} is from a newer gpuyard (schema {current}; this one"
            f" knows {HEAD}).",
            "Upgrade gpuyard, or use another ledger (GPUYARD_HOME, `[ledger] url`).",
        )
    return current == HEAD
