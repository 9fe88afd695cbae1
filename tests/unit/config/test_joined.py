"""The home of a machine that has joined is good on that machine only."""

from pathlib import Path

import pytest

from gpuyard.config import joined
from gpuyard.config.joined import (
    Membership,
    read_membership,
    refuse_copied_home,
    this_machine,
    write_membership,
)
from gpuyard.config.paths import Home
from gpuyard.domain.errors import RefusedError


@pytest.fixture
def machine_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "machine-id"
    file.write_text("0123\n")
    monkeypatch.setattr(joined, "MACHINE_ID", file)
    return file


@pytest.fixture
def home(tmp_path: Path, machine_id: Path) -> Home:
    made = Home(tmp_path / "home")
    made.create()
    membership = Membership("lab", 7433, "node_2", "lab2", this_machine())
    write_membership(made, membership, authority="", certificate="")
    return made


def known(home: Home) -> Membership:
    found = read_membership(home)
    assert found
    return found


def test_on_the_machine_that_has_joined_it_is_good(home: Home) -> None:
    refuse_copied_home(home, known(home))
    assert "0123" not in known(home).machine


def test_on_another_machine_it_is_not(home: Home, machine_id: Path) -> None:
    machine_id.write_text("4567\n")
    with pytest.raises(RefusedError, match="copied from another machine, lab2"):
        refuse_copied_home(home, known(home))


@pytest.mark.parametrize("content", ["", None])
def test_where_machines_have_no_id_nothing_is_said(
    home: Home, machine_id: Path, content: str | None
) -> None:
    if content is None:
        machine_id.unlink()
    else:
        machine_id.write_text(content)
    assert this_machine() == ""
    refuse_copied_home(home, known(home))
