"""The token of the server."""

import stat
from pathlib import Path

import pytest

from gpuyard.domain.errors import InvalidInputError
from gpuyard.server.auth import ensure_token


def test_a_token_that_can_be_guessed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUYARD_TOKEN", "short")
    with pytest.raises(InvalidInputError, match="GPUYARD_TOKEN: has 5 characters"):
        ensure_token(tmp_path / "token")
    monkeypatch.setenv("GPUYARD_TOKEN", "x" * 16)
    assert ensure_token(tmp_path / "token") == "x" * 16


def test_no_users_token_becomes_that_of_the_instance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUYARD_TOKEN", "gpuyard_" + "x" * 43)
    with pytest.raises(InvalidInputError, match="is the token of a user"):
        ensure_token(tmp_path / "token")


def test_white_space_around_a_token_is_not_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUYARD_TOKEN", "\t" + "x" * 16 + " \r\n")
    assert ensure_token(tmp_path / "token") == "x" * 16
    monkeypatch.setenv("GPUYARD_TOKEN", "\n")
    with pytest.raises(InvalidInputError, match="has 0 characters"):
        ensure_token(tmp_path / "token")


@pytest.mark.parametrize("inside", [" ", "\n", "\x07", "\x7f", "\xa0", "é"])
def test_a_token_that_no_header_can_carry_is_refused(
    inside: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUYARD_TOKEN", "x" * 16 + inside + "x")
    with pytest.raises(InvalidInputError, match="GPUYARD_TOKEN: has a space"):
        ensure_token(tmp_path / "token")


def test_each_home_has_a_random_token_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GPUYARD_TOKEN", raising=False)
    tokens = [ensure_token(tmp_path / name) for name in ("one", "another")]
    assert tokens[0] != tokens[1]
    assert min(map(len, tokens)) >= 43, "256 bits in base64"
    assert ensure_token(tmp_path / "one") == tokens[0]
    assert stat.S_IMODE((tmp_path / "one").stat().st_mode) == 0o600
