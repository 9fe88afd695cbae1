"""Files that are taken for backups."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gpuyard.domain.errors import LedgerError
from gpuyard.ledger.pages import restore


@pytest.mark.parametrize("statement", ["CREATE TABLE lease (epoch)", "SELECT 1"])
def test_what_is_no_backup_is_named_and_changes_nothing(
    tmp_path: Path, statement: str
) -> None:
    file = tmp_path / "other.db"
    with closing(sqlite3.connect(file)) as other:
        other.execute(statement)
    file.touch()
    ledger = tmp_path / "ledger.db"
    ledger.write_text("the former one")
    with pytest.raises(LedgerError) as refused:
        restore(file, ledger)
    said = f"The file {file} is no backup of a ledger. Name another."
    assert str(refused.value) == said
    assert ledger.read_text() == "the former one"
    assert {path.name for path in tmp_path.iterdir()} == {"other.db", "ledger.db"}
