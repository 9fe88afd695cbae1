"""Errors as problem details (RFC 9457): `type, title, status, detail, code`, and
`faults` for bad input.
"""

import json
import re
from typing import Any

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match

from gpuyard.controller.visibility import Visibility
from gpuyard.domain.errors import (
    DiskFullError,
    Fault,
    GpuyardError,
    InvalidInputError,
    UnauthorizedError,
    quoted,
)
from gpuyard.domain.validation import own_words
from gpuyard.gateway import openai
from gpuyard.server.concealing import conceal_culprit
from gpuyard.server.permissions import IDENTITY_KEY
from gpuyard.server.web_page import nothing_here

log = structlog.get_logger(__name__)
MEDIA_TYPE = "application/problem+json"
# The headers that an error keeps in another form.
_KEPT = ("Allow", "Retry-After", "WWW-Authenticate")


class FieldFault(BaseModel):
    """One thing wrong with an input."""

    field: str
    fault: str
    remedy: str


class Problem(BaseModel):
    """What every error looks like.

    `code` is stable; `detail` is the whole explanation, remedy included.
    """

    type: str
    title: str
    status: int
    detail: str
    code: str
    remedy: str | None = None
    faults: list[FieldFault] | None = Field(
        default=None, description="With the code `invalid_input`."
    )


def problem(
    status: int, code: str, title: str, detail: str, **more: Any
) -> JSONResponse:
    """A problem document."""
    body = {
        "type": f"urn:gpuyard:error:{code}",
        "title": title,
        "status": status,
        "detail": detail,
        "code": code,
    }
    return JSONResponse({**body, **more}, status, media_type=MEDIA_TYPE)


def in_form_of(path: str, answer: JSONResponse) -> JSONResponse:
    """A problem document as it is, or in OpenAI's form if it is for OpenAI's API, whose
    clients read nothing else.
    """
    if not path.startswith(f"{openai.PREFIX}/"):
        return answer
    told = json.loads(bytes(answer.body))
    kept = {name: answer.headers[name] for name in _KEPT if name in answer.headers}
    return openai.error_answer(
        answer.status_code, told["detail"], "invalid_request_error", told["code"], kept
    )


def _gpuyard_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, GpuyardError)
    return in_form_of(request.url.path, of_error(error))


def _disk_full(request: Request, error: Exception) -> JSONResponse:
    """It names the job that fills the disk, but only to whom that job exists."""
    assert isinstance(error, DiskFullError)
    app_state = request.app.state.app_state
    identity = request.scope.get(IDENTITY_KEY)
    if identity is None:  # a worker
        return _gpuyard_error(request, error.unnamed or error)
    visibility: Visibility = app_state.controller.access.visibility_of(identity)
    told = conceal_culprit(app_state.queries, visibility, error)
    return _gpuyard_error(request, told)


def of_error(error: GpuyardError) -> JSONResponse:
    """The problem document of one of our errors."""
    more: dict[str, Any] = {"remedy": error.remedy} if error.remedy else {}
    if isinstance(error, InvalidInputError):
        more["faults"] = [
            {"field": f.field, "fault": f.fault, "remedy": f.remedy}
            for f in error.faults
        ]
    title = re.split(r"[.;]", type(error).__doc__ or "", maxsplit=1)[0]
    answer = problem(error.status, error.code, title, str(error), **more)
    if isinstance(error, UnauthorizedError):
        answer.headers["WWW-Authenticate"] = "Bearer"
    if error.retry_after:
        answer.headers["Retry-After"] = str(error.retry_after)
    return answer


def _bad_request(request: Request, error: Exception) -> JSONResponse:
    """A parameter or a small body that FastAPI refused, in the words of our own
    faults.
    """
    assert isinstance(error, RequestValidationError)
    return _gpuyard_error(
        request, InvalidInputError([_fault(item) for item in error.errors()])
    )


def _fault(item: dict[str, Any]) -> Fault:
    field = ".".join(str(part) for part in item["loc"][1:]) or "(body)"
    if item["type"] == "missing":
        return Fault(field, "is missing", "give it a value")
    if item["type"] == "value_error":
        return own_words(field, str(item["ctx"]["error"]))
    return Fault(
        field,
        f"is {quoted(item['input'])}",
        re.sub(r"^\w+ should", "must", item["msg"]),
    )


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404 and (page := nothing_here(request)):
        return page
    code = {404: "not_found", 405: "method_not_allowed"}.get(
        error.status_code, "http_error"
    )
    path = request.url.path
    detail = str(error.detail)
    if error.status_code == 404 and path.startswith(f"{openai.PREFIX}/"):
        detail = openai.no_such_path(path)
    answer = problem(error.status_code, code, str(error.detail), detail)
    if error.status_code == 405:
        answer.headers["Allow"] = ", ".join(_methods(request))
    return in_form_of(path, answer)


def _methods(request: Request) -> list[str]:
    """The methods that there are at the path asked for: each may have a route of its
    own.
    """
    scopes = {
        method: {**request.scope, "method": method}
        for method in ("DELETE", "GET", "PATCH", "POST", "PUT")
    }
    routes = request.app.routes
    return [
        m
        for m, scope in scopes.items()
        if any(route.matches(scope)[0] is Match.FULL for route in routes)
    ]


def _left(_request: Request, _error: Exception) -> JSONResponse:
    """The client left before its body had come: nobody reads this."""
    return problem(499, "client_left", "The client has left", "The body broke off.")


def _unexpected(_request: Request, error: Exception) -> JSONResponse:
    log.error("unexpected error", exc_info=error)
    return problem(
        500,
        "internal_error",
        "gpuyard made a mistake",
        f"{type(error).__name__}; see the server's log",
    )


def install(app: FastAPI) -> None:
    """Answer every error with a problem document."""
    app.add_exception_handler(GpuyardError, _gpuyard_error)
    app.add_exception_handler(DiskFullError, _disk_full)
    app.add_exception_handler(RequestValidationError, _bad_request)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ClientDisconnect, _left)
    app.add_exception_handler(Exception, _unexpected)
