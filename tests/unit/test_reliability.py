"""Each fault of docs/reliability.md names its test, and that test is there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reliability.md").read_text()
ROWS = [
    row
    for row in PAGE.splitlines()
    if row.startswith("| ") and not row.startswith("| fault")
]


def test_each_row_names_a_test() -> None:
    assert len(ROWS) >= 16
    for row in ROWS:
        assert re.search(r"`tests/\S+\.py(::\w+)?`", row), row


def test_each_named_test_is_there() -> None:
    for path, name in re.findall(r"`(tests/\S+?\.py)(?:::(\w+))?`", PAGE):
        assert re.search(rf"def {name or 'test_'}", (ROOT / path).read_text()), (
            f"{path}::{name}"
        )
