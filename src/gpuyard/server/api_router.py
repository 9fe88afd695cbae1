"""What every router of `/api/v1` has in common.

A router carries its whole prefix and all its dependencies itself, and `make_app` takes
its routes as they are: FastAPI's `include_router` would make each route a second time,
on the first request.
"""

from fastapi import APIRouter, Depends

from gpuyard.server.openapi import PROBLEMS
from gpuyard.server.parameters import refuse_unknown
from gpuyard.server.security_scheme import document_token


def api_router(prefix: str = "", *, tag: str) -> APIRouter:
    """A router under `/api/v1` whose routes want a token. `tag` is the heading of its
    routes in the OpenAPI document.
    """
    return APIRouter(
        prefix=f"/api/v1{prefix}",
        tags=[tag],
        dependencies=[Depends(document_token), Depends(refuse_unknown)],
        responses=PROBLEMS,
    )


def open_api_router(*, tag: str) -> APIRouter:
    """A router whose routes want no token and have their whole path."""
    return APIRouter(
        tags=[tag], dependencies=[Depends(refuse_unknown)], responses=PROBLEMS
    )
