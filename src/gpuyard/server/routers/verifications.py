"""`/api/v1/verifications`: the verdicts of checks, with their evidence.

Whoever verifies leaves them here (`gpuyard verify`). The newest 10,000 are kept, and
the evidence of the newest 200.
"""

import asyncio
from typing import Annotated, Any

from fastapi import Path, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel

from gpuyard.controller.results import ResultKind
from gpuyard.domain.errors import NotFoundError
from gpuyard.domain.verifications import CheckId, NewVerification, Verification
from gpuyard.ledger.queries import Row
from gpuyard.server.api_router import api_router
from gpuyard.server.dependencies import TheAppState
from gpuyard.server.openapi import text
from gpuyard.server.permissions import identity_of

router = api_router("/verifications", tag="trust")
Check = Annotated[CheckId, Path(description="The id of a check.")]
_KIND = ResultKind.VERIFICATION


class VerificationPage(BaseModel):
    """Verdicts, newest first."""

    items: list[Verification]
    next: str | None = None


@router.get("")
async def list_verifications(
    app_state: TheAppState,
    executor: Annotated[str | None, Query(description="Of this one only.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
    cursor: Annotated[
        str | None, Query(description="The `next` of the page before.")
    ] = None,
) -> VerificationPage:
    """The verdicts of checks, newest first, each with what was judged."""
    newest = app_state.controller.results.newest
    rows, after = await asyncio.to_thread(newest, _KIND, limit, cursor, about=executor)
    return VerificationPage(items=[_shown(row) for row in rows], next=after)


@router.get("/{check}")
async def show_verification(app_state: TheAppState, check: Check) -> Verification:
    """The verdict of a check."""
    row = app_state.controller.results.find(_KIND, check)
    if row is None:
        raise _unknown(check)
    return _shown(row)


@router.get(
    "/{check}/evidence", response_class=Response, responses=text("application/json")
)
async def verification_evidence(app_state: TheAppState, check: Check) -> Response:
    """The signed evidence of a check, as a file: `gpuyard verify check FILE` tells
    whether it is sound. Only that of the newest checks is kept, unless it is large.
    """
    file = app_state.controller.results.file(_KIND, check)
    if file is None:
        raise NotFoundError(
            f"The server has no evidence of a check {check!r}.",
            "`gpuyard verify evidence` has it where the check was made.",
        )
    named = {"Content-Disposition": f'attachment; filename="{check}.json"'}
    return Response(file, media_type="application/json", headers=named)


@router.put("/{check}")
async def record_verification(
    request: Request, app_state: TheAppState, check: Check, body: NewVerification
) -> Verification:
    """Leave the verdict of a check for others to see, in place of an earlier one. It
    changes no trust.
    """
    row = await app_state.controller.results.keep(
        _KIND,
        check,
        body.model_dump(exclude={"evidence"}),
        about=body.executor,
        owner=identity_of(request.scope).user,
        file=body.evidence,
    )
    return _shown(row)


def _shown(row: Row) -> Verification:
    known: dict[str, Any] = {
        **row["body"],
        "id": row["id"],
        "has_evidence": row["has_file"],
        "recorded_by": row["owner"],
        "recorded_at": row["recorded_at"],
    }
    return Verification.model_validate(known)


def _unknown(check: str) -> NotFoundError:
    return NotFoundError(
        f"There is no verdict of a check {check!r} here.",
        "`GET /api/v1/verifications` lists them.",
    )
