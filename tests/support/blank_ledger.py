"""Empty ledgers in SQLite, copied from one: making one takes longer than many a test."""

import tempfile
from functools import cache
from pathlib import Path

from gpuyard.ledger.ledger import Ledger


def blank_ledger(path: Path) -> Path:
    """Put an empty ledger, up to date, at `path` if there is none; `path`."""
    if not path.exists():
        path.touch(0o600)
        path.write_bytes(_blank())
    return path


@cache
def _blank() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.db"
        Ledger.open(path).close()
        assert [file.name for file in Path(folder).iterdir()] == [path.name]
        return path.read_bytes()
