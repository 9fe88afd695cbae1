"""Bringing a ledger to this version's schema, with Alembic, or saying why that cannot be."""

from pathlib import Path

import sqlalchemy as sa

from gpuyard.domain.errors import LedgerTooNewError

# The newest revision in migrations/versions. Kept here so that a ledger that is up to date never imports Alembic,
# which would add a third of a second to every start.
HEAD = "0001"
_KNOWN = frozenset({HEAD})


def migrate(engine: sa.Engine) -> None:
    """Create or upgrade the schema; LedgerTooNewError when a newer gpuyard wrote it."""
    current = _revision(engine)
    if current == HEAD:
        return
    if current is not None and current not in _KNOWN:
        raise LedgerTooNewError(
            f"The ledger {engine.url.database} is from a newer gpuyard (schema {current}; this one knows {HEAD}).",
            "Upgrade gpuyard, or set GPUYARD_HOME to another folder.",
        )
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    with engine.begin() as connection:
        if engine.dialect.name == "sqlite":
            # sqlite3 begins no transaction for DDL by itself, and a half-made schema could never be opened again.
            connection.exec_driver_sql("BEGIN")
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def _revision(engine: sa.Engine) -> str | None:
    with engine.connect() as connection:
        if not sa.inspect(connection).has_table("alembic_version"):
            return None
        return connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()
