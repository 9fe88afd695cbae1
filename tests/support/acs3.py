"""Checks the signatures of requests to Alibaba Cloud, as "Request structure and
signature V3" of its documentation describes them. Made without its SDK.
"""

import hashlib
import hmac
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from urllib.parse import parse_qsl, quote, urlsplit

_AUTHORIZATION = re.compile(
    r"ACS3-HMAC-SHA256 Credential=([^,]+),SignedHeaders=([a-z0-9;-]+),"
    r"Signature=([0-9a-f]{64})"
)
_CLOCK_S = 900.0


class SignatureError(Exception):
    """Alibaba's code and message for a request that is not signed well."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def check_signature(
    method: str,
    target: str,
    headers: Mapping[str, str],
    body: bytes,
    secrets: Mapping[str, str],
    now: float,
) -> str:
    """The AccessKey id that signed the request; `secrets` are by these ids, `now` is in
    UTC seconds. SignatureError if the signature is wrong, too old, or of another key.
    """
    found = _AUTHORIZATION.fullmatch(headers.get("authorization", ""))
    if found is None:
        raise SignatureError("IncompleteSignature", "The Authorization is not complete")
    (key_id, names, signature) = found.groups()
    if key_id not in secrets:
        raise SignatureError(
            "InvalidAccessKeyId.NotFound", "Specified access key is not found."
        )
    _check_date(headers.get("x-acs-date", ""), now)
    _check_signed_headers(names.split(";"), headers)
    if headers.get("x-acs-content-sha256") != hashlib.sha256(body).hexdigest():
        raise SignatureError(
            "SignatureDoesNotMatch", "The hash of the body is not that of the header."
        )
    canonical = _canonical_request(method, target, names, headers)
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    text = f"ACS3-HMAC-SHA256\n{digest}"
    expected = hmac.new(secrets[key_id].encode(), text.encode(), "sha256").hexdigest()
    if not hmac.compare_digest(expected, signature):
        raise SignatureError(
            "SignatureDoesNotMatch",
            "Specified signature does not match our calculation.",
        )
    return key_id


def _check_date(date: str, now: float) -> None:
    try:
        signed = datetime.strptime(date, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError:
        raise SignatureError(
            "InvalidTimeStamp.Format", "The specified timestamp is not well-formed."
        ) from None
    if abs(signed.timestamp() - now) > _CLOCK_S:
        raise SignatureError(
            "InvalidTimeStamp.Expired", "Specified time stamp or date value is expired."
        )


def _check_signed_headers(names: list[str], headers: Mapping[str, str]) -> None:
    """Everything that says what is asked for, and as whom, has to be signed."""
    wanted = {name for name in headers if name.startswith("x-acs-")} | {"host"}
    if names != sorted(names) or wanted - set(names):
        raise SignatureError(
            "SignatureDoesNotMatch", "Headers are missing from SignedHeaders."
        )


def _canonical_request(
    method: str, target: str, names: str, headers: Mapping[str, str]
) -> str:
    parts = urlsplit(target)
    pairs = sorted(parse_qsl(parts.query, keep_blank_values=True))
    query = "&".join(
        f"{quote(key, safe='-_.~')}={quote(value, safe='-_.~')}" for key, value in pairs
    )
    signed = "".join(
        f"{name}:{headers.get(name, '').strip()}\n" for name in names.split(";")
    )
    content = headers.get("x-acs-content-sha256", "")
    path = parts.path or "/"
    return f"{method}\n{path}\n{query}\n{signed}\n{names}\n{content}"
