"""The whole schema: the tables of the state and those beside it."""

from gpuyard.ledger import side_tables, tables
from gpuyard.ledger.columns import metadata

__all__ = ["metadata", "side_tables", "tables"]
