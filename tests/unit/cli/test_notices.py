"""Whom the command tells of an end."""

import json
from pathlib import Path

import pytest

from gpuyard.cli.notices import named, with_usual
from gpuyard.domain.errors import InvalidInputError

JOB = {"command": ["true"]}
ADDRESSES = ["mail:ana@example.org", "https://ci.example.org/42"]


def test_the_settings_say_it_where_nobody_else_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GPUYARD_HOME", str(tmp_path))
    assert with_usual(JOB) == JOB
    (tmp_path / "gpuyard.toml").write_text(f"[defaults]\nnotify = {ADDRESSES}\n")
    assert with_usual(JOB) == {**JOB, "notify": ADDRESSES}
    for said in ([], ["https://example.org"]):
        assert with_usual({**JOB, "notify": said})["notify"] == said
    monkeypatch.setenv("GPUYARD_DEFAULTS__NOTIFY", json.dumps(["ana"]))
    with pytest.raises(InvalidInputError, match=r"NOTIFY\.0: is no address"):
        with_usual(JOB)


def test_none_is_nobody() -> None:
    assert named(None) is None
    assert named(["none"]) == []
    assert named(ADDRESSES) == ADDRESSES
