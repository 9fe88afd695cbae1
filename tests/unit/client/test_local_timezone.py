"""The name of this machine's time zone, wherever that stands."""

from pathlib import Path

import pytest

from gpuyard.client.local_timezone import local_timezone
from gpuyard.domain.errors import InvalidInputError


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TZ", raising=False)


@pytest.fixture
def zones(tmp_path: Path) -> Path:
    """The folder of all time zones."""
    zone = tmp_path / "zoneinfo/Europe/Berlin"
    zone.parent.mkdir(parents=True)
    zone.write_bytes(b"TZif")
    return tmp_path / "zoneinfo"


@pytest.mark.parametrize(
    "given", ["Europe/Berlin", ":Europe/Berlin", "/usr/share/zoneinfo/Europe/Berlin"]
)
def test_the_variable_comes_first(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", given)
    assert local_timezone(tmp_path / "none", tmp_path / "none") == "Europe/Berlin"


def test_then_what_the_local_time_links_to(zones: Path, tmp_path: Path) -> None:
    link = tmp_path / "localtime"
    link.symlink_to(zones / "Europe/Berlin")
    assert local_timezone(link, tmp_path / "none") == "Europe/Berlin"


def test_then_the_file_with_its_name(tmp_path: Path) -> None:
    copy = tmp_path / "localtime"
    copy.write_bytes(b"TZif")
    name = tmp_path / "timezone"
    name.write_text("America/New_York\n")
    assert local_timezone(copy, name) == "America/New_York"


def test_a_machine_that_says_nothing_has_utc(tmp_path: Path) -> None:
    assert local_timezone(tmp_path / "none", tmp_path / "none") == "UTC"


def test_a_zone_without_a_name_must_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "localtime"
    copy.write_bytes(b"TZif")
    with pytest.raises(InvalidInputError, match="--timezone Europe/Berlin"):
        local_timezone(copy, tmp_path / "none")
    monkeypatch.setenv("TZ", "CET-1CEST")
    with pytest.raises(InvalidInputError, match="CET-1CEST has no name"):
        local_timezone(tmp_path / "none", tmp_path / "none")
