"""`/api/v1/audit`: who was admitted and refused, and who changed what."""

import asyncio
from typing import Annotated

from fastapi import Query
from pydantic import BaseModel

from gpuyard.domain.audit import AuditEvent, AuditLine
from gpuyard.server.api_router import api_router
from gpuyard.server.audit_pages import newest_lines
from gpuyard.server.dependencies import TheAppState

router = api_router("/audit", tag="users")


class AuditPage(BaseModel):
    """Lines of the audit log, newest first."""

    items: list[AuditLine]
    next: str | None = None


@router.get("")
async def list_audit(
    app_state: TheAppState,
    event: Annotated[
        AuditEvent | None, Query(description="Only lines about this.")
    ] = None,
    who: Annotated[
        str | None, Query(description="Only of this user, or for it.")
    ] = None,
    before: Annotated[
        float | None,
        Query(allow_inf_nan=False, description="Only older ones; UTC seconds."),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> AuditPage:
    """The audit log of this server, newest first: who signed in, who was refused and
    why, and who changed what. Where several servers share a ledger, each has its own,
    and this is that of the one that leads.
    """
    files = app_state.home.audit_logs()
    lines = await asyncio.to_thread(newest_lines, files, limit, event, who, before)
    return AuditPage(items=lines)
