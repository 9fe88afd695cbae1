"""The audit log, read from its end."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpuyard.domain.audit import AuditEvent
from gpuyard.server.audit_pages import newest_lines


def line(number: int, **values: Any) -> str:
    known = {
        "at": float(number),
        "since": float(number),
        "event": "act",
        "who": "ana",
        "for": None,
        "from": "127.0.0.1",
        # Longer than a block now and then, and so across their borders.
        "what": "POST /api/v1/jobs " + "x" * (number * 37 % 900),
        "outcome": "201",
        "count": 1,
    }
    return json.dumps(known | values) + "\n"


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Two files with 400 lines, the newest file first."""
    older = tmp_path / "audit.log.1"
    newer = tmp_path / "audit.log"
    older.write_text("".join(map(line, range(200))) + '{"at": 3, "cut o')
    newer.write_text("".join(map(line, range(200, 400))))
    return [newer, tmp_path / "gone", older]


def test_lines_come_newest_first_over_all_files(files: list[Path]) -> None:
    found = newest_lines(files, 1000)
    assert [one.at for one in found] == [float(at) for at in range(399, -1, -1)]
    assert all(one.what.startswith("POST") for one in found)
    page = newest_lines(files, 3, before=200.0)
    assert [one.at for one in page] == [199.0, 198.0, 197.0]


def test_lines_are_chosen_by_event_and_user(files: list[Path]) -> None:
    with files[0].open("a") as file:
        file.write(line(400, event="refused", who=None, outcome="unauthorized"))
        file.write(line(401, who="root", **{"for": "bob"}))
    (refused,) = newest_lines(files, 10, AuditEvent.REFUSED)
    assert (refused.at, refused.outcome) == (400.0, "unauthorized")
    (for_bob,) = newest_lines(files, 10, who="bob")
    assert (for_bob.who, for_bob.acts_for) == ("root", "bob")
    assert newest_lines([], 10) == []
