"""What browsers send, where one server of an instance passes it on to another.

A session is good at all servers, but a cookie has the name that the server gives it
whose page was open, and a page is that server's own. So the leader hears the same from
a page of its own.
"""

from collections.abc import Sequence

from gpuyard.server.sign_in.cookies import Cookies

Headers = Sequence[tuple[bytes, bytes]]


class ForwardedBrowser:
    """Translates between pages of the server with the cookies `own` and of the one with
    `theirs`.
    """

    def __init__(self, own: Cookies, theirs: Cookies) -> None:
        self._own = own
        self._theirs = theirs

    def request(self, headers: Headers) -> Headers:
        """The headers of a request as a page of theirs would send them. What another
        page has sent stays that.
        """
        return [(name, self._sent(name.lower(), value)) for name, value in headers]

    def answer(self, headers: Headers) -> Headers:
        """The headers of their answer as one of ours."""
        return [(name, self._answered(name.lower(), value)) for name, value in headers]

    def _sent(self, name: bytes, value: bytes) -> bytes:
        if name == b"origin" and value.decode("latin-1").lower() == self._own.origin:
            return self._theirs.origin.encode("latin-1")
        if name == b"cookie":
            pairs = value.decode("latin-1").split(";")
            renamed = (_renamed(one, self._own, self._theirs) for one in pairs)
            return "; ".join(renamed).encode("latin-1")
        return value

    def _answered(self, name: bytes, value: bytes) -> bytes:
        if name != b"set-cookie":
            return value
        text = _renamed(value.decode("latin-1"), self._theirs, self._own)
        return text.encode("latin-1")


def _renamed(pair: str, one: Cookies, other: Cookies) -> str:
    """`NAME=VALUE` with the name that the same cookie has there."""
    name, equals, value = pair.strip().partition("=")
    names = {one.session: other.session, one.begun: other.begun}
    return f"{names.get(name, name)}{equals}{value}"
