"""`/api/v1/budgets`: what the jobs of a project or of a user may cost."""

from fastapi import Request
from pydantic import BaseModel

from gpuyard.domain.budgets import Budget, BudgetSpec
from gpuyard.domain.cost_keys import INSTANCE_OWNER
from gpuyard.domain.spec_values import Name
from gpuyard.server.api_router import api_router
from gpuyard.server.dependencies import TheAppState
from gpuyard.server.permissions import visibility_of

router = api_router("/budgets", tag="costs")


class BudgetPage(BaseModel):
    """Every budget, by name."""

    items: list[Budget]
    next: str | None = None


@router.get("")
async def list_budgets(request: Request, app_state: TheAppState) -> BudgetPage:
    """Every budget, by name."""
    visibility = visibility_of(request.scope, app_state.controller)
    return BudgetPage(items=app_state.controller.budgets.listing(visibility))


@router.get("/{name}")
async def show_budget(request: Request, app_state: TheAppState, name: Name) -> Budget:
    """One budget: what is spent, reserved and expected in its present period."""
    visibility = visibility_of(request.scope, app_state.controller)
    return app_state.controller.budgets.find(name, visibility)


@router.put("/{name}")
async def set_budget(app_state: TheAppState, name: Name, spec: BudgetSpec) -> Budget:
    """Add a budget, or replace the one of this name.

    When it is spent, no job of it starts any more; if it is `hard`, those that run are
    asked to save their work, and ended.
    """
    if spec.user not in (None, INSTANCE_OWNER):
        app_state.controller.users.refuse_unknown(spec.user)
    return await app_state.controller.budgets.set(name, spec)


@router.delete("/{name}")
async def remove_budget(app_state: TheAppState, name: Name) -> Budget:
    """Remove a budget; answers with what it was."""
    return await app_state.controller.budgets.remove(name)
