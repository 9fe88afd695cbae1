"""What the tables of the ledger share: the types of their columns, indexes of some
rows, and the schema that they belong to (`schema.py` has all of it).
"""

from typing import Any

import sqlalchemy as sa
from sqlalchemy import event

metadata = sa.MetaData()
# SQLite counts a key up only when it is declared INTEGER; PostgreSQL's is too small.
# Text sorts by its bytes in both.
INTEGER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")


def partial_index(name: str, *columns: str, where: str) -> sa.Index:
    """An index of the rows for which the SQL condition `where` holds."""
    condition = sa.text(where)
    return sa.Index(name, *columns, sqlite_where=condition, info={"where": condition})


@event.listens_for(metadata, "before_create")
def _add_conditions(_: sa.MetaData, connection: sa.Connection, **__: Any) -> None:
    """Give PostgreSQL the conditions of the indexes. SQLAlchemy loads its dialect for
    that, which would take 2 MB of a server whose ledger is a file.
    """
    if connection.dialect.name != "postgresql":
        return
    for table in metadata.tables.values():
        for index in table.indexes:
            if "where" in index.info:
                index.dialect_options["postgresql"]["where"] = index.info["where"]
