"""A git server over HTTPS on 127.0.0.1, as GitHub's is: it serves the repositories of a
folder.
"""

import gzip
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from tests.support.tls import make_certificates

_ADVERTISEMENT = b"001e# service=git-upload-pack\n0000"
_UPLOAD_PACK = ["git", "upload-pack", "--stateless-rpc"]


@dataclass(frozen=True)
class GitServer:
    """`url` is where NAME.git is served; below `url`/moved it sends clients on to `url`,
    and below `url`/silent it never answers. `ca_file` has its certificate.
    """

    url: str
    ca_file: Path


@contextmanager
def git_server(repositories: Path, certificates: Path) -> Iterator[GitServer]:
    """Serves the bare repositories of a folder until the end."""
    make_certificates(certificates)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            (place, _, name) = urlsplit(self.path).path[1:].partition("/")
            if place == "moved":
                self._answer(
                    302, b"", location=f"/git/{name}?{self.path.partition('?')[2]}"
                )
            elif place == "silent":
                over.wait()
            else:
                words = ["--advertise-refs"]
                self._upload_pack(words, b"", "advertisement", _ADVERTISEMENT)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            self._upload_pack([], body, "result")

        def _upload_pack(
            self, words: list[str], body: bytes, kind: str, head: bytes = b""
        ) -> None:
            name = urlsplit(self.path).path.split("/")[2]
            done = subprocess.run(
                [*_UPLOAD_PACK, *words, str(repositories / name)],
                input=body,
                env={"GIT_PROTOCOL": self.headers.get("Git-Protocol", "")},
                capture_output=True,
                check=False,
            )
            if done.returncode:
                self._answer(404, b"")
            else:
                self._answer(200, head + done.stdout, f"git-upload-pack-{kind}")

        def _answer(
            self, status: int, body: bytes, kind: str = "", location: str = ""
        ) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            if kind:
                self.send_header("Content-Type", f"application/x-{kind}")
            if location:
                self.send_header("Location", location)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    try:
        url = f"https://127.0.0.1:{server.server_address[1]}/git"
        yield GitServer(url, certificates / "authority.pem")
    finally:
        over.set()
        server.shutdown()
        server.server_close()
        serving.join(60)
