"""A loopback proxy in front of a TCP server that can cut every connection, at once or
when a word passes.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Proxy:
    """Passes bytes on to `target`.

    `cut()` ends what is open; `cut_at` arms a cut for the next time a word is sent.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._open: set[socket.socket] = set()
        self._word: bytes | None = None
        self._delivered = False
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """End every connection."""
        self.cuts += 1
        for end in list(self._open):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut_at(self, word: bytes, *, delivered: bool) -> None:
        """Cut when a client next sends `word`: after the server got it but before its
        answer, or before it did.
        """
        self._word = word
        self._delivered = delivered

    @property
    def armed(self) -> bool:
        """Whether the cut is still to come."""
        return self._word is not None

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(self._target)
                except OSError:
                    client.close()
                    continue
                self._open |= {client, server}
                for ends in ((client, server, True), (server, client, False)):
                    threading.Thread(target=self._carry, args=ends, daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, asking: bool) -> None:
        with suppress(OSError):
            while part := source.recv(1 << 16):
                word = self._word
                if asking and word and word in part.upper():
                    self._word = None
                    if self._delivered:
                        # Shut for reading first, so that the answer cannot get back.
                        source.shutdown(socket.SHUT_WR)
                        sink.sendall(part)
                    self.cut()
                    break
                sink.sendall(part)
        self._open -= {source, sink}
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@contextmanager
def proxied(host: str, port: int) -> Iterator[Proxy]:
    """A proxy in front of `host:port`."""
    proxy = Proxy((host, port))
    try:
        yield proxy
    finally:
        proxy.close()
