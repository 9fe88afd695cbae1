"""What the server refuses, as `Status` objects."""

from typing import Any

from tests.support.kubernetes.kinds import Kind
from tests.support.kubernetes.objects import Object


class ApiError(Exception):
    """A refusal with its `Status`."""

    def __init__(
        self, code: int, reason: str, message: str, details: Object | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details or {}
        self.headers: dict[str, str] = {}

    @property
    def status(self) -> Object:
        body: Object = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
        }
        return {
            **body,
            **({"details": self.details} if self.details else {}),
            "code": self.code,
        }


def _details(kind: Kind, name: str, **more: Any) -> Object:
    group = {"group": kind.group} if kind.group else {}
    return {"name": name, **group, "kind": kind.plural, **more}


def not_found(kind: Kind, name: str) -> ApiError:
    return ApiError(
        404, "NotFound", f'{kind.qualified} "{name}" not found', _details(kind, name)
    )


def no_such_path() -> ApiError:
    return ApiError(404, "NotFound", "the server could not find the requested resource")


def already_exists(kind: Kind, name: str) -> ApiError:
    return ApiError(
        409,
        "AlreadyExists",
        f'{kind.qualified} "{name}" already exists',
        _details(kind, name),
    )


def conflict(kind: Kind, name: str, why: str = "") -> ApiError:
    why = (
        why
        or "the object has been modified; please apply your changes to the latest version and try again"
    )
    message = f'Operation cannot be fulfilled on {kind.qualified} "{name}": {why}'
    return ApiError(409, "Conflict", message, _details(kind, name))


def forbidden(kind: Kind, name: str, why: str) -> ApiError:
    named = f'{kind.qualified} "{name}"' if name else kind.qualified
    return ApiError(
        403, "Forbidden", f"{named} is forbidden: {why}", _details(kind, name)
    )


def unauthorized() -> ApiError:
    return ApiError(401, "Unauthorized", "Unauthorized")


def bad_request(message: str) -> ApiError:
    return ApiError(400, "BadRequest", message)


def expired(message: str) -> ApiError:
    return ApiError(410, "Expired", message)


def unprocessable(kind: Kind, name: str, causes: list[Object]) -> ApiError:
    """`causes`: each with `reason`, `message` and `field`."""
    each = [f"{cause['field']}: {cause['message']}" for cause in causes]
    text = each[0] if len(each) == 1 else f"[{', '.join(each)}]"
    group = {"group": kind.group} if kind.group else {}
    details: Object = {"name": name, **group, "kind": kind.kind, "causes": causes}
    return ApiError(
        422, "Invalid", f'{kind.qualified_kind} "{name}" is invalid: {text}', details
    )
