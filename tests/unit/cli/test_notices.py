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
    monkeypatch.setenv("GPUYARD_DEFAULTS__NOTIFY", json.dumps(ADDRESSES[:1]))
    assert with_usual(JOB)["notify"] == ADDRESSES[:1]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('notify = "mail:ana@example.org"', "is no list of addresses"),
        ("notify = [1]", "is no list of addresses"),
        ("notify = [", "cannot be read"),
    ],
)
def test_what_is_no_list_of_addresses_names_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, fault: str
) -> None:
    monkeypatch.setenv("GPUYARD_HOME", str(tmp_path))
    (tmp_path / "gpuyard.toml").write_text(f"[defaults]\n{text}\n")
    with pytest.raises(InvalidInputError, match=fault) as caught:
        with_usual(JOB)
    assert caught.value.faults[0].field.endswith("gpuyard.toml: defaults.notify")


def test_none_is_nobody() -> None:
    assert named(None) is None
    assert named(["none"]) == []
    assert named(ADDRESSES) == ADDRESSES
