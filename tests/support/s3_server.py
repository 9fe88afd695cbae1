"""moto's S3 server, with buckets that can be away for a while.

    python -m tests.support.s3_server -H HOST -p PORT

PUT /away/NAME hides a bucket, DELETE /away/NAME shows it again, whole: one that is
deleted and made anew would be empty for a moment, and its objects would seem lost.
"""

from collections.abc import Callable, Iterable
from typing import Any

import moto.server

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
NO_BUCKET = (
    b"<?xml version='1.0'?><Error><Code>NoSuchBucket</Code>"
    b"<Message>The specified bucket does not exist</Message></Error>"
)


class HiddenBuckets:
    """Answers for the buckets that are away, and passes everything else on."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._away: set[str] = set()

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        first, _, rest = environ["PATH_INFO"].lstrip("/").partition("/")
        if first == "away":
            if environ["REQUEST_METHOD"] == "PUT":
                self._away.add(rest)
            else:
                self._away.discard(rest)
            start_response("204 No Content", [])
            return []
        if first in self._away:
            start_response("404 Not Found", [("Content-Type", "application/xml")])
            return [NO_BUCKET]
        return self._application(environ, start_response)


def main() -> None:
    """Run moto's own command with the wrapped application."""
    run_simple = moto.server.run_simple

    def run(host: str, port: int, application: Application, **options: Any) -> None:
        run_simple(host, port, HiddenBuckets(application), **options)

    moto.server.run_simple = run
    moto.server.main()


if __name__ == "__main__":
    main()
