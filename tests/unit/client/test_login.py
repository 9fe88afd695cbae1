"""The file that `gpuyard login` leaves."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gpuyard.client.login import Login, forget_login, keep_login, read_login
from gpuyard.config.paths import Home
from gpuyard.domain.errors import InvalidInputError

LOGIN = Login("https://gpu.example.org", "gpuyard_secret")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path / "home")
    keep_login(made, LOGIN)
    return made


def test_it_is_read_as_it_was_kept_until_it_is_forgotten(home: Home) -> None:
    assert read_login(home) == LOGIN
    assert home.login.stat().st_mode & 0o777 == 0o600
    assert forget_login(home)
    assert read_login(home) is None


def _opened(login: Path) -> None:
    login.chmod(0o644)


def _linked(login: Path) -> None:
    login.rename(login.with_suffix(".elsewhere"))
    login.symlink_to(login.with_suffix(".elsewhere"))


def _replaced(login: Path) -> None:
    login.unlink()
    login.mkdir()


@pytest.mark.parametrize("spoil", [_opened, _linked, _replaced])
def test_one_that_others_could_have_made_or_read_is_refused(
    home: Home, spoil: Callable[[Path], None]
) -> None:
    spoil(home.login)
    with pytest.raises(InvalidInputError, match="run `gpuyard login` again"):
        read_login(home)
