"""Which addresses somebody may have the server tell."""

import pytest

from gpuyard.domain.public_addresses import is_public


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "2001:4860:4860::8888", "64:ff9b::808:808"]
)
def test_hosts_of_the_public_internet(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.0.0.1", "169.254.169.254", "100.64.0.1", "224.0.0.1"),
        *("::1", "fe80::1%eth0", "fd00::1", "fec0::1", "ff02::1", "::"),
        *("::ffff:10.0.0.1", "::127.0.0.1", "64:ff9b::a00:1", "2002:7f00:1::"),
    ],
)
def test_all_others_by_whatever_form_of_address(address: str) -> None:
    assert not is_public(address)
