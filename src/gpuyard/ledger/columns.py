"""What the tables of the ledger share: the types of their columns, and the schema that
they belong to (`schema.py` has all of it).
"""

import sqlalchemy as sa

metadata = sa.MetaData()
# SQLite counts a key up only when it is declared INTEGER; PostgreSQL's is too small.
# Text sorts by its bytes in both.
INTEGER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")
