"""What FastAPI hands to the routers."""

from typing import Annotated

from fastapi import Depends, Request

from gpuyard.server.app_state import AppState


# FastAPI would run what is not async in a thread, for each request.
async def _app_state(request: Request) -> AppState:
    app_state: AppState = request.app.state.app_state
    return app_state


TheAppState = Annotated[AppState, Depends(_app_state)]
