"""What both clients share: the request's form, and problem documents turned back into our errors."""

import json
from typing import Any

import httpx

from gpuyard import __version__
from gpuyard.client.connection import Address
from gpuyard.domain import errors
from gpuyard.domain.errors import Fault, GpuyardError, InvalidInputError, UnreachableError, quoted

# Reading has no limit: a log is followed for as long as the job runs.
TIMEOUT = httpx.Timeout(30.0, read=60.0)
STREAM_TIMEOUT = httpx.Timeout(30.0, read=None)


def options(address: Address) -> dict[str, Any]:
    """How both clients reach the server; InvalidInputError when its address is none."""
    try:
        url = httpx.URL(address.url)
    except httpx.InvalidURL:
        url = httpx.URL()
    if url.scheme not in ("http", "https") or not url.host:
        raise InvalidInputError.of("GPUYARD_URL", f"is {quoted(address.url)}", "write it as http://127.0.0.1:8400")
    headers = {"Authorization": f"Bearer {address.token}", "User-Agent": f"gpuyard/{__version__}",
               "Content-Type": "application/json"}  # fmt: skip
    # A proxy that the environment names is for other machines; it must never see this one's token.
    elsewhere = url.host not in ("127.0.0.1", "::1", "localhost")
    return {"base_url": url, "headers": headers, "timeout": TIMEOUT, "trust_env": elsewhere}


def content_of(body: Any) -> bytes | None:
    """The body as JSON; InvalidInputError when it has no JSON form (a date, an infinity, bytes that are not UTF-8)."""
    if body is None:
        return None
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        remedy = "use text in UTF-8, finite numbers, lists and tables"
        raise InvalidInputError.of("(body)", f"cannot be sent as JSON: {error}", remedy) from None


def unreachable(address: Address, error: httpx.HTTPError) -> UnreachableError:
    """No answer came."""
    cause = str(error) or type(error).__name__
    return UnreachableError(f"The server at {address.url} does not answer ({cause}).", "`gpuyard doctor` may know why.")


def error_of(response: httpx.Response) -> GpuyardError:
    """The error a response describes, as the class the server raised where we have it."""
    try:
        body: dict[str, Any] = response.json()
    except ValueError:
        return GpuyardError(f"The server answered {response.status_code}: {response.text[:200]}")
    code, detail = body.get("code", ""), str(body.get("detail", response.text))
    if code == InvalidInputError.code:
        faults = [Fault(f["field"], f["fault"], f.get("remedy", "")) for f in body.get("faults", [])]
        return InvalidInputError(faults or [Fault("(body)", detail)])
    remedy = str(body.get("remedy", ""))
    return _classes().get(code, GpuyardError)(detail.removesuffix(remedy).strip(), remedy)


def _classes() -> dict[str, type[GpuyardError]]:
    plain = (errors.NotFoundError, errors.RefusedError, errors.IllegalMoveError, errors.CapacityError,
             errors.UnauthorizedError, errors.UnreachableError, errors.LedgerError, errors.DiskFullError)  # fmt: skip
    return {kind.code: kind for kind in plain}
