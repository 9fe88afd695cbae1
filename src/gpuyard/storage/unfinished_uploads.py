"""Uploads in parts that were begun in a bucket of S3 and never ended: their parts have
no name and cost money until somebody aborts them.

The library that we store with cannot list them, so these two requests are signed here,
as AWS describes it (Signature Version 4). Address and names are those of the library;
the secret key comes from the environment. Without one there, nothing is done.
"""

import hashlib
import hmac
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Self
from urllib.parse import parse_qsl, quote, urlsplit, urlunsplit
from xml.etree import ElementTree

from obstore import sign
from obstore.store import S3Store

if TYPE_CHECKING:
    import httpx

_PROBE = "probe"
_SIGNED_FOR = timedelta(minutes=1)
_TIMEOUT_S = 60.0
_NOT_FOUND = 404
_NOT_IMPLEMENTED = 501
# So many pages of a thousand are read at a time.
_MOST_PAGES = 100
# Of blobs of ours, below the prefix; what others upload there is not ours to abort.
_BLOB = re.compile(r"[0-9a-f]{2}/[0-9a-f]{62}")
_UNRESERVED = "-_.~"
Query = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Upload:
    """An upload that was begun; `begun_at` is in UTC seconds."""

    key: str
    upload_id: str
    begun_at: float


@dataclass(frozen=True, slots=True)
class _Access:
    """How a bucket is asked, for a minute. `root` is the path of the bucket, `prefix`
    that of our blobs in it. `signature` are the parts of the query that say who asks.
    """

    scheme: str
    host: str
    root: str
    prefix: str
    signature: Query
    secret: str

    @classmethod
    def of(cls, store: S3Store) -> Self | None:
        """None if the environment has no secret key, as on machines with a role."""
        secret = os.environ.get("AWS_SECRET_ACCESS_KEY")
        if not secret:
            return None
        parts = urlsplit(sign(store, "GET", _PROBE, _SIGNED_FOR))
        signature = dict(parse_qsl(parts.query))
        del signature["X-Amz-Signature"]
        prefix = f"{store.prefix}/" if store.prefix else ""
        root = parts.path.removesuffix(quote(f"{prefix}{_PROBE}"))
        return cls(parts.scheme, parts.netloc, root, prefix, signature, secret)

    def url(self, method: str, key: str, query: Query) -> str:
        """A signed URL of an object of the bucket, or, with no key, of the bucket."""
        path = f"{self.root}{quote(key)}"
        parameters = sorted(
            (_quoted(name), _quoted(value)) for name, value in self._all(query).items()
        )
        asked = "&".join(f"{name}={value}" for name, value in parameters)
        signed_headers = f"host:{self.host}\n\nhost"
        request = "\n".join([method, path, asked, signed_headers, "UNSIGNED-PAYLOAD"])
        signed = f"{asked}&X-Amz-Signature={self._sign(request)}"
        return urlunsplit((self.scheme, self.host, path, signed, ""))

    def _all(self, query: Query) -> dict[str, str]:
        return {**self.signature, **query}

    def _sign(self, request: str) -> str:
        _, _, scope = self.signature["X-Amz-Credential"].partition("/")
        at = self.signature["X-Amz-Date"]
        digest = hashlib.sha256(request.encode()).hexdigest()
        key = f"AWS4{self.secret}".encode()
        for part in scope.split("/"):
            key = _hmac(key, part)
        return _hmac(key, f"AWS4-HMAC-SHA256\n{at}\n{scope}\n{digest}").hex()


def abort_begun_before(store: S3Store, limit: float) -> int:
    """Abort the uploads of blobs that were begun before `limit` (UTC seconds); how many
    there were. httpx.HTTPError.
    """
    # Late: a server without a bucket does without.
    import httpx

    access = _Access.of(store)
    if access is None:
        return 0
    count = 0
    with httpx.Client(timeout=_TIMEOUT_S) as web:
        old = [one for one in _uploads(web, access) if one.begun_at < limit]
        for upload in old:
            query = {"uploadId": upload.upload_id}
            answer = web.delete(access.url("DELETE", upload.key, query))
            if answer.status_code != _NOT_FOUND:  # it has ended meanwhile
                answer.raise_for_status()
                count += 1
    return count


def _uploads(web: "httpx.Client", access: _Access) -> Iterator[Upload]:
    """All that were begun and have not ended."""
    query = {"uploads": "", "prefix": access.prefix}
    for _ in range(_MOST_PAGES):
        answer = web.get(access.url("GET", "", query))
        if answer.status_code == _NOT_IMPLEMENTED:
            return  # not every server that speaks S3 lists them
        answer.raise_for_status()
        page = ElementTree.fromstring(answer.content)
        for element in page.iterfind("{*}Upload"):
            key = element.findtext("{*}Key", "")
            if _BLOB.fullmatch(key.removeprefix(access.prefix)):
                begun = datetime.fromisoformat(element.findtext("{*}Initiated", ""))
                upload_id = element.findtext("{*}UploadId", "")
                yield Upload(key, upload_id, begun.timestamp())
        if page.findtext("{*}IsTruncated") != "true":
            return
        query["key-marker"] = page.findtext("{*}NextKeyMarker", "")
        query["upload-id-marker"] = page.findtext("{*}NextUploadIdMarker", "")


def _quoted(text: str) -> str:
    return quote(text, safe=_UNRESERVED)


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()
