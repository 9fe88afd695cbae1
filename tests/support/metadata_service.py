"""The metadata service of a cloud, as far as it tells that a machine is taken back.

    python metadata_service.py ADDRESS PORT NOTICE_FILE

It answers as AWS and Alibaba do: with a token that was asked for and is still good, and
404 as long as there is no notice. The notice is what the file holds, once it exists.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_TTL = "-metadata-token-ttl-seconds"
NOTICES = {
    "/latest/meta-data/spot/instance-action": "X-aws-ec2-metadata-token",
    "/latest/meta-data/instance/spot/termination-time": "X-aliyun-ecs-metadata-token",
}


class MetadataService(ThreadingHTTPServer):
    """`tokens` are those that are good; a test may take them back. `asked` are the
    paths that were asked for.
    """

    daemon_threads = True

    def __init__(self, address: tuple[str, int], notice: Path) -> None:
        super().__init__(address, _Handler)
        self.notice = notice
        self.tokens: set[str] = set()
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        """Where it is."""
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}"


class _Handler(BaseHTTPRequestHandler):
    server: MetadataService

    def do_PUT(self) -> None:
        named = [name for name in self.headers if name.lower().endswith(_TTL)]
        if self.path != "/latest/api/token" or not named:
            self._answer(400, "")
            return
        token = f"token-{len(self.server.asked)}"
        self.server.tokens.add(token)
        self.server.asked.append(self.path)
        self._answer(200, token)

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        header = NOTICES.get(self.path)
        if header is None:
            self._answer(404, "")
        elif self.headers.get(header) not in self.server.tokens:
            self._answer(401, "")
        elif self.server.notice.exists():
            self._answer(200, self.server.notice.read_text())
        else:
            self._answer(404, "<html>Not Found</html>")

    def _answer(self, status: int, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def metadata_service(notice: Path, port: int = 0) -> Iterator[MetadataService]:
    """One of this machine; on a free port, unless it is named."""
    service = MetadataService(("127.0.0.1", port), notice)
    serving = threading.Thread(target=service.serve_forever, args=(0.01,))
    serving.start()
    try:
        yield service
    finally:
        service.shutdown()
        serving.join()
        service.server_close()


if __name__ == "__main__":
    MetadataService((sys.argv[1], int(sys.argv[2])), Path(sys.argv[3])).serve_forever()
