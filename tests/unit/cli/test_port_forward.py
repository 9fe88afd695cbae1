"""How ports are written."""

import pytest

from gpuyard.cli.port_forward import PortPair
from gpuyard.cli.running import forward
from gpuyard.domain.errors import InvalidInputError


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("8888", PortPair(8888, 8888)),
        ("9000:8888", PortPair(9000, 8888)),
        (":8888", PortPair(0, 8888)),
        ("0:8888", PortPair(0, 8888)),
    ],
)
def test_a_port_is_one_number_or_two(text: str, pair: PortPair) -> None:
    assert PortPair.parse(text) == pair


@pytest.mark.parametrize(
    "text", ["", "http", "0", "65536", "70000:80", "80:", "-1", "1:2:3", "８０"]
)
def test_what_is_no_port_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="9000:8888"):
        PortPair.parse(text)


def test_links_alone_are_told_as_json() -> None:
    with pytest.raises(InvalidInputError, match=r"--json: .* \(add --link\)"):
        forward("job", ["80"], as_json=True)


def test_a_link_takes_no_port_of_this_machine() -> None:
    with pytest.raises(InvalidInputError, match=r"'9000:8888', .* \(write 8888"):
        forward("job", ["6006", "9000:8888"], link=True)
