"""What a `Range` header asks for, in the forms that clients send and in those that they
should not.
"""

import pytest

from gpuyard.server.range_response import NotThereError, wanted_part


@pytest.mark.parametrize(
    ("header", "part"),
    [
        ("bytes=0-0", (0, 1)),
        ("bytes=100-199", (100, 200)),
        ("bytes=100-", (100, 1000)),
        ("bytes=-100", (900, 1000)),
        ("bytes=-5000", (0, 1000)),
        ("bytes=999-5000", (999, 1000)),
        (" Bytes=1-2 ", (1, 3)),
        ("bytes=2-1", None),
        ("bytes=0-1,5-6", None),
        ("bytes=-", None),
        ("bytes=a-b", None),
        ("lines=1-2", None),
        ("bytes=1-" + "9" * 5000, None),
        ("", None),
    ],
)
def test_what_it_asks_for(header: str, part: tuple[int, int] | None) -> None:
    assert wanted_part(header, 1000) == part


@pytest.mark.parametrize(
    ("header", "size"), [("bytes=1000-", 1000), ("bytes=-0", 1000), ("bytes=0-", 0)]
)
def test_what_is_outside(header: str, size: int) -> None:
    with pytest.raises(NotThereError):
        wanted_part(header, size)
