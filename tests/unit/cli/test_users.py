"""What `gpuyard user` says."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuyard.cli.users import _address


@pytest.mark.parametrize(
    ("here", "for_others", "said"),
    [
        ("http://127.0.0.1:1", "https://gpu.example.org", "https://gpu.example.org"),
        ("https://gpu.example.org", None, "https://gpu.example.org"),
    ],
)
def test_the_address_is_one_that_others_reach(
    here: str, for_others: str | None, said: str
) -> None:
    me = SimpleNamespace(address=for_others)
    client = SimpleNamespace(address=SimpleNamespace(url=here), who_am_i=lambda: me)
    assert _address(cast("Any", client)) == said


def test_an_address_that_only_this_machine_has_is_told_apart() -> None:
    me = SimpleNamespace(address=None)
    url = "http://localhost:1"
    client = SimpleNamespace(address=SimpleNamespace(url=url), who_am_i=lambda: me)
    said = _address(cast("Any", client)).splitlines()
    assert said[0] == url
    assert "set `url` in [server]" in said[1]
