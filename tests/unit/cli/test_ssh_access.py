"""What a node says becomes no settings of ssh here."""

import pytest

from gpuyard.cli.ssh_access import checked_user
from gpuyard.domain.errors import GpuyardError


@pytest.mark.parametrize("name", ["ana", "ana.b-c", "svc$", "ana@example.org"])
def test_the_name_of_an_account_is_taken(name: str) -> None:
    assert checked_user(name) == name


@pytest.mark.parametrize("name", ["", "x\n    ProxyCommand sh", "x ProxyCommand", "-x"])
def test_what_is_no_account_is_refused(name: str) -> None:
    with pytest.raises(GpuyardError, match="which is no account"):
        checked_user(name)
