"""Migrates a ledger to this version's schema with Alembic."""

from pathlib import Path

import sqlalchemy as sa

from gpuyard.domain.errors import LedgerTooNewError

# The newest revision in migrations/versions. It stands here so that a ledger that is up
# to date never imports Alembic, which would add a third of a second to every start.
HEAD = "0022"
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
        _upgrade(connection)


def outdated_schema(engine: sa.Engine) -> str | None:
    """The schema of a ledger that `migrate` would change; None when there is none yet,
    or nothing to change.
    """
    with engine.connect() as connection:
        if _is_current(connection):
            return None
        if not sa.inspect(connection).has_table("alembic_version"):
            return None
        return connection.execute(
            sa.text("SELECT version_num FROM alembic_version")
        ).scalar()


def _upgrade(connection: sa.Connection) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    scripts = str(Path(__file__).parent / "migrations")
    config.set_main_option("script_location", scripts.replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _is_current(connection: sa.Connection) -> bool:
    if not sa.inspect(connection).has_table("alembic_version"):
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
