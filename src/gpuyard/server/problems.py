"""Errors as problem details (RFC 9457): `type, title, status, detail, code`, and `faults` for bad input."""

from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from gpuyard.domain.errors import GpuyardError, InvalidInputError

log = structlog.get_logger(__name__)
_MEDIA_TYPE = "application/problem+json"


def problem(status: int, code: str, title: str, detail: str, **more: Any) -> JSONResponse:
    """A problem document."""
    body = {"type": f"urn:gpuyard:error:{code}", "title": title, "status": status, "detail": detail, "code": code}
    return JSONResponse({**body, **more}, status, media_type=_MEDIA_TYPE)


def _gpuyard_error(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, GpuyardError)
    more: dict[str, Any] = {"remedy": error.remedy} if error.remedy else {}
    if isinstance(error, InvalidInputError):
        more["faults"] = [{"field": f.field, "fault": f.fault, "remedy": f.remedy} for f in error.faults]
    title = (type(error).__doc__ or "").split("\n")[0].rstrip(".")
    return problem(error.status, error.code, title, str(error), **more)


def _bad_request(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    faults = [{"field": ".".join(str(p) for p in e["loc"][1:]), "fault": e["msg"], "remedy": ""}
              for e in error.errors()]  # fmt: skip
    detail = "; ".join(f"{fault['field']}: {fault['fault']}" for fault in faults)
    return problem(422, InvalidInputError.code, "The input is wrong", detail, faults=faults)


def _http_error(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
    return problem(error.status_code, code, str(error.detail), str(error.detail))


def _unexpected(_request: Request, error: Exception) -> JSONResponse:
    log.error("unexpected error", exc_info=error)
    return problem(500, "internal_error", "gpuyard made a mistake", f"{type(error).__name__}; see the server's log")


def install(app: FastAPI) -> None:
    """Answer every error with a problem document."""
    app.add_exception_handler(GpuyardError, _gpuyard_error)
    app.add_exception_handler(RequestValidationError, _bad_request)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unexpected)
