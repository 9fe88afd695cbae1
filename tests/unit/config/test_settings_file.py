"""Which file holds the settings of a home."""

import pytest

from gpuyard.config.paths import Home
from gpuyard.config.settings import load_settings
from gpuyard.config.settings_file import remember_settings
from gpuyard.domain.errors import InvalidInputError


@pytest.fixture
def home(tmp_path, monkeypatch) -> Home:
    monkeypatch.delenv("GPUYARD_CONFIG", raising=False)
    return Home(tmp_path)


def test_a_file_is_remembered_until_it_is_forgotten(home, tmp_path, monkeypatch):
    other = tmp_path / "other.toml"
    other.write_text("[residency]\ntimeout_s = 7\n")
    remember_settings(home, other)
    assert home.settings == other
    assert load_settings(home).residency.timeout_s == 7
    monkeypatch.setenv("GPUYARD_CONFIG", str(tmp_path / "third.toml"))
    assert home.settings == tmp_path / "third.toml"
    monkeypatch.delenv("GPUYARD_CONFIG")
    remember_settings(home, None)
    remember_settings(home, None)
    assert home.settings == home.own_settings


def test_a_remembered_file_that_is_gone_is_missed(home, tmp_path):
    remember_settings(home, tmp_path / "gone.toml")
    with pytest.raises(InvalidInputError, match="which is no file") as error:
        load_settings(home)
    assert "gone.toml" in str(error.value)
    assert "up --config" in str(error.value)
