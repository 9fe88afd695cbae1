"""Problem documents (RFC 9457) turned back into the errors the server raised."""

import json
from typing import Any

from gpuyard.domain import errors
from gpuyard.domain.errors import Fault, GpuyardError, InvalidInputError


def error_of(status: int, content: bytes) -> GpuyardError:
    """The error an answer describes, as the class the server raised where we have
    it.
    """
    text = content.decode(errors="replace")
    try:
        body: Any = json.loads(text)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        return GpuyardError(f"The server answered {status}: {text[:200]}")
    return _from_document(body)  # pyright: ignore[reportUnknownArgumentType]


def _from_document(body: dict[str, Any]) -> GpuyardError:
    if isinstance(body.get("error"), dict):  # OpenAI's form, under /v1
        said: dict[str, Any] = body["error"]
        kind = _CLASSES.get(str(said.get("code")), errors.RefusedError)
        return kind(f"{str(said.get('message')).rstrip('.')}.")
    code = body.get("code", "")
    detail = str(body.get("detail", body))
    if code == InvalidInputError.code:
        faults = [
            Fault(f["field"], f["fault"], f.get("remedy", ""))
            for f in body.get("faults", [])
        ]
        return InvalidInputError(faults or [Fault("(body)", detail)])
    if code == errors.ProviderError.code:
        return errors.ProviderError(detail)
    remedy = str(body.get("remedy") or "")
    return _CLASSES.get(code, GpuyardError)(detail.removesuffix(remedy).strip(), remedy)


_PLAIN = (
    errors.NotFoundError,
    errors.RefusedError,
    errors.IllegalMoveError,
    errors.ClosedPortError,
    errors.CapacityError,
    errors.IsArrayError,
    errors.UnauthorizedError,
    errors.ForbiddenError,
    errors.RequestRefusedError,
    errors.TooSlowError,
    errors.TooLargeError,
    errors.WrongHostError,
    errors.TooManyRequestsError,
    errors.RateLimitedError,
    errors.ServerBusyError,
    errors.UnreachableError,
    errors.LedgerError,
    errors.LedgerUnreachableError,
    errors.LedgerBusyError,
    errors.DiskFullError,
)
_CLASSES: dict[str, type[GpuyardError]] = {
    **{kind.code: kind for kind in _PLAIN},
    "model_not_found": errors.NotFoundError,
}
