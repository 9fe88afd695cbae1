"""The headers that every answer has, for browsers: nothing of it runs, is kept, is
framed or is read by another site.
"""

from collections.abc import Iterable

Header = tuple[bytes, bytes]
_HEADERS: tuple[Header, ...] = (
    (
        b"content-security-policy",
        b"default-src 'none'; frame-ancestors 'none'; base-uri 'none';"
        b" form-action 'none'",
    ),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


def secured(given: Iterable[Header]) -> list[Header]:
    """An answer's headers with those of these that it does not have.

    A page may say itself what it needs, and an answer that is passed on has them.
    """
    result = list(given)
    names = {name for name, _ in result}
    return result + [header for header in _HEADERS if header[0] not in names]
