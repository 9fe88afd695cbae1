"""Launches at a cloud that answers after 50 ms and takes 20 a second: AWS's own SDK
before an HTTP server of ours.
"""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from gpuyard.providers.aws.calls import AwsCalls
from gpuyard.providers.aws.config import AwsConfig

PER_S = 20
REPLY_S = 0.05
_STARTED = (
    "<RunInstancesResponse><instancesSet><item><instanceId>i-1</instanceId></item>"
    "</instancesSet></RunInstancesResponse>"
)
_REFUSED = (
    "<Response><Errors><Error><Code>RequestLimitExceeded</Code></Error></Errors>"
    "</Response>"
)


class _Cloud(BaseHTTPRequestHandler):
    """Takes at once as many calls as in a second, and then as they come."""

    protocol_version = "HTTP/1.1"
    lock = threading.Lock()
    left = float(PER_S)
    filled_at = 0.0

    def do_POST(self) -> None:
        """Start a machine, or refuse to."""
        self.rfile.read(int(self.headers["Content-Length"]))
        taken = self._takes()
        time.sleep(REPLY_S)
        body = (_STARTED if taken else _REFUSED).encode()
        self.send_response(200 if taken else 503)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _takes(self) -> bool:
        kind = type(self)
        with kind.lock:
            now = time.monotonic()
            filled = kind.left + (now - kind.filled_at) * PER_S
            kind.left = min(float(PER_S), filled)
            kind.filled_at = now
            if kind.left < 1:
                return False
            kind.left -= 1
            return True

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing."""


@contextmanager
def _served() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Cloud)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def _launch(endpoint: str, count: int) -> float:
    settings = {
        "regions": ["us-east-1"],
        "access_key_id": "x",
        "secret_access_key": "x",
        "endpoint": endpoint,
    }
    calls = AwsCalls(AwsConfig.read(settings))
    # The first call imports the SDK.
    await calls.call("ec2", "us-east-1", "DescribeRegions")
    _Cloud.left = float(PER_S)
    begun = time.monotonic()
    await asyncio.gather(
        *(
            calls.call("ec2", "us-east-1", "RunInstances", MinCount=1, MaxCount=1)
            for _ in range(count)
        )
    )
    taken = time.monotonic() - begun
    calls.close()
    return taken


def launch_seconds(count: int) -> tuple[float, float]:
    """How long so many launches take, and how long they have to."""
    with _served() as endpoint:
        taken = asyncio.run(_launch(endpoint, count))
    return taken, max(0, count - PER_S) / PER_S + REPLY_S
