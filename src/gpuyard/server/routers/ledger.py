"""`/api/v1/ledger`: is the ledger what its journal says, and a copy of it to keep."""

from dataclasses import asdict
from typing import Any

from fastapi.responses import FileResponse

from gpuyard.server.api_router import api_router
from gpuyard.server.dependencies import TheAppState
from gpuyard.server.openapi import text

_PRUNE_WAIT_S = 10.0
router = api_router("/ledger", tag="ledger")


@router.get("/check")
async def check_ledger(app_state: TheAppState) -> dict[str, Any]:
    """Fold the journal anew and compare: `ok`, how much was looked at, and every
    difference (at most a hundred).

    Who asks while a check runs gets the result of that one.
    """
    report = await app_state.whole_ledger.check()
    return {"ok": report.ok, **asdict(report)}


@router.get("/prune")
async def plan_prune(app_state: TheAppState) -> dict[str, Any]:
    """What `[retention]` would remove now: by kind, `count` and `bytes`."""
    found = await app_state.controller.retention.plan()
    return {kind: asdict(amount) for kind, amount in found.items()}


@router.post("/prune")
async def prune(app_state: TheAppState) -> dict[str, Any]:
    """Remove what `[retention]` says is too old: `removed`, a count by kind, and
    whether everything is `done`.

    The answer comes after some seconds. If it says that not everything is done, the
    work goes on, and the same request asks for it again.
    """
    done, removed = await app_state.controller.retention.run_on_request(_PRUNE_WAIT_S)
    return {"done": done, "removed": dict(removed)}


@router.post(
    "/backup", response_class=FileResponse, responses=text("application/vnd.sqlite3")
)
async def back_up(app_state: TheAppState) -> FileResponse:
    """The ledger as it is now, as a SQLite file, whichever database it is in.

    Commits go on meanwhile. While another client downloads one, the answer is 503; a
    client that reads nothing for a minute gets no more of it.
    """
    return await app_state.whole_ledger.download()
