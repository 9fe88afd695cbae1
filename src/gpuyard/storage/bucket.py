"""Blobs in a bucket: of S3 and compatible services, Google Cloud Storage or Azure.

Credentials, region and endpoint come from the environment, as obstore reads them
(`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, …). A blob is hashed into a local file before
it is sent, because its name is its hash. An interrupted upload leaves parts without a
name (`unfinished_uploads.py`).
"""

import math
import re
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from obstore.exceptions import BaseError
from obstore.store import S3Store, from_url

from gpuyard.domain.errors import InvalidInputError, quoted
from gpuyard.storage.store import VARIABLES, BaseBlobStore, BucketError, blob_key
from gpuyard.storage.streams import CHUNK, Blob, as_file

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult
    from obstore.store import RetryConfig

T = TypeVar("T")

_PART_BYTES = 8 << 20
_MAX_PARTS = 9_000  # S3's limit is 10,000
_PARTS_AT_ONCE = 4  # at most this many are in memory
# An object without content: when the blob of this name was stored again, which is not
# sent twice.
_AGAIN = ".again"
_BLOB = re.compile(r"[0-9a-f]{2}/[0-9a-f]{62}")
# A request may take as long as bytes arrive: a blob of many GB is one response.
_CLIENT: dict[str, Any] = {
    "allow_http": True,
    "timeout": timedelta(days=2),
    "read_timeout": timedelta(seconds=120),
}
# Options of the connection. The library panics if they stand among those of the store.
_OF_CONNECTION = frozenset(
    (
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "default_content_type",
        "http1_only",
        "http2_keep_alive_interval",
        "http2_keep_alive_timeout",
        "http2_keep_alive_while_idle",
        "http2_max_frame_size",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_ca_certificate",
        "proxy_excludes",
        "proxy_url",
        "randomize_addresses",
        "read_timeout",
        "timeout",
        "user_agent",
    )
)
# In an address, such as that of a proxy.
_PASSWORD = re.compile(r"//[^/@]*:[^/@]*@")
_PREFIX = re.compile(r"^(aws|google|azure)_")
_SECRET = re.compile(
    r"secret|password|token(?!_file)|(access|account|master|customer)_key|sas",
    re.IGNORECASE,
)
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_SERVICE_ACCOUNT",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
# Not every S3 service can delete many objects in one call.
_DEFAULTS = {"s3": {"disable_bulk_delete": "true"}}
_PLACE = {
    "s3": "AWS_ENDPOINT_URL and AWS_REGION",
    "gs": "the network",
    "az": "AZURE_STORAGE_ACCOUNT_NAME",
}
_SAFE_TEXTS = [
    re.compile(text)
    for text in (
        r"status code: (\d{3}[\w ]*)",
        r"<Code>(\w+)</Code>",
        r'(?:message|error): "([\w ]+(?:: [\w ]+)*)"',
    )
]
_FORBIDDEN = re.compile(r"status code: 40[13]")
# Without credentials in the environment, the library asks these services of the machine
# for some.
_NO_CREDENTIALS = re.compile(
    r"/latest/(api/token|meta-data)|computeMetadata|metadata/identity"
)


class Bucket:
    """The bucket and the prefix of `url` (`s3://bucket/prefix`). A request without an
    answer is repeated `retries` times within about 10 s. InvalidInputError names the
    `setting` if they cannot be used.
    """

    def __init__(
        self,
        url: str,
        options: Mapping[str, str] | None = None,
        *,
        retries: int = 6,
        setting: str = "storage",
    ) -> None:
        self._scheme, _, place = url.partition("://")
        host, slash, prefix = place.partition("/")
        # Without the part that may be a password.
        self.name = f"{self._scheme}://{host.rpartition('@')[2]}{slash}{prefix}"
        self.variables = VARIABLES.get(self._scheme, ())
        all_options = {**_DEFAULTS.get(self._scheme, {}), **(options or {})}
        self._objects = _open_store(url, self.name, all_options, retries, setting)

    @contextmanager
    def _explained(self) -> Generator[None]:
        try:
            yield
        except (BaseError, FileNotFoundError) as error:
            raise self._error(str(error)) from None

    def _error(self, text: str) -> BucketError:
        """Explain an error of the library. Only parts of its text that cannot hold a
        secret are shown: a response may quote a token.
        """
        matches = [pattern.search(text) for pattern in _SAFE_TEXTS]
        what = ", ".join(match[1] for match in matches if match)
        keys = _CREDENTIALS[self._scheme]
        place = _PLACE[self._scheme]
        if _NO_CREDENTIALS.search(text):
            return BucketError(
                f"There are no credentials for {self.name}.", f"Set {keys}."
            )
        if _FORBIDDEN.search(text):
            return BucketError(
                f"{self.name} refuses the credentials ({what}).",
                f"Check {keys}, and that they may list, read, write and delete there.",
            )
        if "status code: 404" in text:
            return BucketError(
                f"There is no bucket for {self.name} ({what}).",
                f"Create it, or check its URL and {place}.",
            )
        return BucketError(
            f"{self.name} does not answer as it should ({what or 'no answer'}).",
            f"Check {place}.",
        )


class BucketStore(Bucket, BaseBlobStore):
    """Blobs in a bucket, as `ab/cdef…`.

    Blobs are hashed in `scratch` (None: the system's temporary directory) before they
    are sent.
    """

    def __init__(
        self,
        url: str,
        options: Mapping[str, str] | None = None,
        *,
        scratch: Path | None = None,
        retries: int = 6,
    ) -> None:
        super().__init__(url, options, retries=retries)
        self._scratch = scratch
        self._bucket_seen = False

    def has(self, sha256: str) -> bool:
        return self._ask(self._objects.head, sha256) is not None

    def stored_at(self, sha256: str) -> float | None:
        there = self._ask(self._objects.head, sha256)
        if there is None:
            return None
        again = self._ask(self._objects.head, sha256, _AGAIN)
        times = [found["last_modified"] for found in (there, again) if found]
        return max(times).timestamp()

    def open(self, sha256: str, part: tuple[int, int] | None = None) -> IO[bytes]:
        options: GetOptions = {"range": part} if part else {}
        found = self._ask(lambda name: self._objects.get(name, options=options), sha256)
        if found is None:
            with self._explained():
                # Even if it was found before: callers give up a missing blob for good.
                self._look_for_bucket()
            raise FileNotFoundError(f"there is no blob {sha256} in {self.name}")
        return as_file(self._parts(found))

    def delete(self, sha256: str) -> None:
        self._ask(self._objects.delete, sha256)
        self._ask(self._objects.delete, sha256, _AGAIN)

    def sync_names(self, digests: Iterable[str]) -> None:
        """Does nothing: what a bucket has taken lasts."""

    def older_than(self, at: float) -> list[str]:
        """The SHA-256 of the blobs that were stored before `at` (UTC seconds)."""
        with self._explained():
            pages = self._objects.list(chunk_size=1000)  # pyright: ignore[reportUnknownMemberType]
            return [
                found["path"].replace("/", "")
                for page in pages
                for found in page
                if _BLOB.fullmatch(found["path"])
                and found["last_modified"].timestamp() < at
            ]

    def folders(self) -> list[str]:
        """The names before the first slash of all that is stored."""
        with self._explained():
            found = self._objects.list_with_delimiter()  # pyright: ignore[reportUnknownMemberType]
        return [path.rpartition("/")[2] for path in found["common_prefixes"]]

    def sweep(self) -> None:
        """Does nothing: temporary files have no names."""

    def abort_unfinished(self, limit: float) -> int:
        if self._scheme != "s3":
            return 0
        # Late: the server asks once a day.
        import httpx

        from gpuyard.storage.unfinished_uploads import abort_begun_before

        try:
            return abort_begun_before(self._objects, limit)
        except httpx.HTTPStatusError as error:
            raise self._error(f"status code: {error.response.status_code}") from None
        except (httpx.HTTPError, BaseError) as error:
            raise self._error(type(error).__name__) from None

    def _incoming(self) -> AbstractContextManager[IO[bytes]]:
        return tempfile.TemporaryFile(dir=self._scratch)

    def _keep(self, file: IO[bytes], blob: Blob) -> None:
        # A blob of which only a part is there is written again.
        if self._has_whole(blob):
            with self._explained():
                self._objects.put(blob_key(blob.sha256) + _AGAIN, b"")
            return
        file.seek(0)
        part = max(_PART_BYTES, math.ceil(blob.size / _MAX_PARTS))
        with self._explained():
            try:
                self._objects.put(
                    blob_key(blob.sha256),
                    file,
                    chunk_size=part,
                    max_concurrency=_PARTS_AT_ONCE,
                )
            except FileNotFoundError:
                # The upload has ended, and the answer that said so was lost: some
                # servers know nothing of it when they are asked to end it again.
                if not self._has_whole(blob):
                    raise

    def _has_whole(self, blob: Blob) -> bool:
        found = self._ask(self._objects.head, blob.sha256)
        return found is not None and found["size"] == blob.size

    def _ask(self, call: Callable[[str], T], sha256: str, behind: str = "") -> T | None:
        """Run `call` for the blob, or for the object with `behind` at the end of its
        name; None when it does not exist.
        """
        with self._explained():
            try:
                return call(blob_key(sha256) + behind)
            except FileNotFoundError:
                self._check_bucket()
                return None

    def _check_bucket(self) -> None:
        """Check once that the bucket exists: S3's answer does not always tell a missing
        blob from a missing bucket.
        """
        if not self._bucket_seen:
            self._look_for_bucket()
            self._bucket_seen = True

    def _look_for_bucket(self) -> None:
        next(iter(self._objects.list(chunk_size=1)), None)  # pyright: ignore[reportUnknownMemberType]

    def _parts(self, found: "GetResult") -> Iterator[bytes]:
        with self._explained():
            yield from found.stream(min_chunk_size=CHUNK)


def _open_store(
    url: str, name: str, options: dict[str, str], retries: int, setting: str
) -> S3Store:
    """The library's store. GCS and Azure have the same methods as S3."""
    keys = _CREDENTIALS[url.partition(":")[0]]
    secrets = [option for option in options if _SECRET.search(option)]
    if secrets or name != url:
        holder = f"the URL of {name} holds"
        if secrets:
            holder = f"the option {secrets[0]!r} is"
        remedy = f"set {keys} in the environment instead"
        raise InvalidInputError.of(setting, f"{holder} a secret", remedy)
    for option, value in options.items():
        if _PASSWORD.search(value):
            fault = f"the option {option!r} holds a password"
            remedy = "set a proxy as HTTPS_PROXY or HTTP_PROXY in the environment"
            raise InvalidInputError.of(setting, fault, remedy)
    retry: RetryConfig = {
        "max_retries": retries,
        "backoff": {"max_backoff": timedelta(seconds=5)},
    }
    of_store, of_connection = _sorted_out(options)
    client: Any = {**_CLIENT, **of_connection}
    try:
        return from_url(  # type: ignore[return-value]
            url, config=of_store, client_options=client, retry_config=retry
        )
    except (BaseError, ValueError) as error:
        first_line = str(error).partition("\n")[0]
        fault = f"{quoted(name)} cannot be used: {first_line}"
        raise InvalidInputError.of(setting, fault) from None


def _sorted_out(options: Mapping[str, str]) -> tuple[Any, dict[str, Any]]:
    """Options of the store, and those of the connection to it."""
    of_store: dict[str, str] = {}
    of_connection: dict[str, Any] = {}
    for option, value in options.items():
        name = _PREFIX.sub("", option.lower())
        if name in _OF_CONNECTION:
            of_connection[name] = value
        else:
            of_store[option] = value
    return of_store, of_connection
