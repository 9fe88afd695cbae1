"""Blobs in a bucket: S3 and what speaks like it, Google's, Azure's.

Credentials, region and endpoint come from the environment, as obstore reads them (`AWS_ACCESS_KEY_ID`,
`AWS_ENDPOINT_URL`, …). A blob is hashed into a local file before it is sent, since its name is its hash. An upload that
was cut off leaves parts without a name, which only the bucket can expire: give it a rule that aborts them.
"""

import re
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, TypeVar

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store, from_url

from gpuyard.domain.errors import InvalidInputError, quoted
from gpuyard.storage.blobs import BucketError, Store, key
from gpuyard.storage.streams import CHUNK, Blob, as_file

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult
    from obstore.store import RetryConfig

T = TypeVar("T")

_PART = 8 << 20
_MOST_PARTS = 9_000  # S3 takes 10,000
_PARTS_AT_ONCE = 4  # at most this many are in memory
# A request may take as long as its bytes flow: a blob of many GB is one answer.
_CLIENT: dict[str, Any] = {"allow_http": True, "timeout": timedelta(days=2), "read_timeout": timedelta(seconds=120)}
_SECRET = re.compile(r"secret|password|token(?!_file)|(access|account|master|customer)_key|sas", re.IGNORECASE)
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_SERVICE_ACCOUNT",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
# All that the library reads begins so, and what leads to a bucket is as little a job's business as its key.
_VARIABLES = {"s3": ("AWS_",), "gs": ("GOOGLE_",), "az": ("AZURE_",)}
_DEFAULTS = {"s3": {"disable_bulk_delete": "true"}}  # not every S3 has the call that deletes many
_PLACE = {"s3": "AWS_ENDPOINT_URL and AWS_REGION", "gs": "the network", "az": "AZURE_STORAGE_ACCOUNT_NAME"}
_TELLING = [re.compile(text) for text in (
    r"status code: (\d{3}[\w ]*)", r"<Code>(\w+)</Code>", r'(?:message|error): "([\w ]+(?:: [\w ]+)*)"',
)]  # fmt: skip
_FORBIDDEN = re.compile(r"status code: 40[13]")
# With none in the environment the library asks the machine it runs on for some.
_NO_CREDENTIALS = re.compile(r"/latest/(api/token|meta-data)|computeMetadata|metadata/identity")


class BucketStore(Store):
    """Blobs in the bucket and under the prefix of `url` (`s3://bucket/prefix`), as `ab/cdef…`.

    `scratch` is where blobs are hashed before they are sent, the system's temporary directory when None. A request that
    gets no answer is sent again, `retries` times in about 10 s.
    """

    def __init__(
        self, url: str, options: Mapping[str, str] | None = None, *, scratch: Path | None = None, retries: int = 6
    ) -> None:
        self._scheme, _, place = url.partition("://")
        host, slash, prefix = place.partition("/")
        self.name = f"{self._scheme}://{host.rpartition('@')[2]}{slash}{prefix}"  # without what may be a password
        self.variables = _VARIABLES.get(self._scheme, ())
        self._scratch, self._bucket_seen = scratch, False
        self._objects = _opened(url, self.name, {**_DEFAULTS.get(self._scheme, {}), **(options or {})}, retries)

    def has(self, sha256: str) -> bool:
        return self._ask(self._objects.head, sha256) is not None

    def open(self, sha256: str, part: tuple[int, int] | None = None) -> IO[bytes]:
        options: GetOptions = {"range": part} if part else {}
        found = self._ask(lambda name: self._objects.get(name, options=options), sha256)
        if found is None:
            with self._explained():
                self._look_for_bucket()  # seen before or not: who asks gives up for good what is not there
            raise FileNotFoundError(f"there is no blob {sha256} in {self.name}")
        return as_file(self._parts(found))

    def delete(self, sha256: str) -> None:
        self._ask(self._objects.delete, sha256)

    def sweep(self) -> None:
        """Nothing to do: temporary files have no names, and parts without a name are the bucket's to expire."""

    def signed_url(self, sha256: str, method: Literal["GET", "PUT"] = "GET", expires_s: float = 3600.0) -> str:
        """A URL that reads or writes this blob without credentials, for `expires_s` seconds (S3: 7 days at most).

        Whoever has a URL to write may write anything; `restore` notices.
        """
        with self._explained():
            return obstore.sign(self._objects, method, key(sha256), timedelta(seconds=expires_s))

    def _incoming(self) -> AbstractContextManager[IO[bytes]]:
        return tempfile.TemporaryFile(dir=self._scratch)

    def _keep(self, file: IO[bytes], blob: Blob) -> None:
        # One that is there in part, however that came about, is written anew.
        there = self._ask(self._objects.head, blob.sha256)
        if there and there["size"] == blob.size:
            return
        file.seek(0)
        part = max(_PART, -(-blob.size // _MOST_PARTS))
        with self._explained():
            self._objects.put(key(blob.sha256), file, chunk_size=part, max_concurrency=_PARTS_AT_ONCE)

    def _ask(self, call: Callable[[str], T], sha256: str) -> T | None:
        """`call` for the blob; None when it is not there."""
        with self._explained():
            try:
                return call(key(sha256))
            except FileNotFoundError:
                self._check_bucket()
                return None

    def _check_bucket(self) -> None:
        """What is not found may be the blob or the bucket, and S3's answer does not always tell: ask once."""
        if not self._bucket_seen:
            self._look_for_bucket()
            self._bucket_seen = True

    def _look_for_bucket(self) -> None:
        next(iter(self._objects.list(chunk_size=1)), None)  # pyright: ignore[reportUnknownMemberType]

    def _parts(self, found: "GetResult") -> Iterator[bytes]:
        with self._explained():
            yield from found.stream(min_chunk_size=CHUNK)

    @contextmanager
    def _explained(self) -> Generator[None]:
        try:
            yield
        except (BaseError, FileNotFoundError) as error:
            raise self._error(str(error)) from None

    def _error(self, said: str) -> BucketError:
        """Of what the library says only words that cannot hold a secret are passed on: an answer may quote a token."""
        what = ", ".join(match[1] for pattern in _TELLING if (match := pattern.search(said)))
        keys, place = _CREDENTIALS[self._scheme], _PLACE[self._scheme]
        if _NO_CREDENTIALS.search(said):
            return BucketError(f"There are no credentials for {self.name}.", f"Set {keys}.")
        if _FORBIDDEN.search(said):
            return BucketError(
                f"{self.name} refuses the credentials ({what}).",
                f"Check {keys}, and that they may list, read, write and delete there.",
            )
        if "status code: 404" in said:
            return BucketError(
                f"There is no bucket for {self.name} ({what}).", f"Create it, or check its URL and {place}."
            )
        return BucketError(f"{self.name} does not answer as it should ({what or 'no answer'}).", f"Check {place}.")


def _opened(url: str, name: str, options: dict[str, str], retries: int) -> S3Store:
    """The library's store. GCS and Azure have the same methods as S3."""
    secret = next((f"the option {option!r} is" for option in options if _SECRET.search(option)), None)
    if secret or name != url:
        keys = _CREDENTIALS[url.partition(":")[0]]
        raise InvalidInputError.of(
            "storage", f"{secret or f'the URL of {name} holds'} a secret", f"set {keys} in the environment instead"
        )
    retry: RetryConfig = {"max_retries": retries, "backoff": {"max_backoff": timedelta(seconds=5)}}
    try:
        return from_url(url, config=options, client_options=_CLIENT, retry_config=retry)  # type: ignore[return-value]
    except (BaseError, ValueError) as error:
        said = str(error).partition("\n")[0]
        raise InvalidInputError.of("storage", f"{quoted(name)} cannot be used: {said}") from None
