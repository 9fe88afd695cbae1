"""What jobs are called in W&B and MLflow, unless somebody has named them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

_PROJECT = "WANDB_PROJECT"
_RUN = "WANDB_NAME"
_MLFLOW = "MLFLOW_TRACKING_URI"
_EXPERIMENT = "MLFLOW_EXPERIMENT_NAME"


def with_run_names(body: Any, shell: Mapping[str, str]) -> Any:
    """`body` with a project and the job's name for the trackers that it uses: W&B if it
    has a variable or a secret of it, MLflow if it has its server. What the job or this
    shell sets stays. `shell`: the variables here.
    """
    if not isinstance(body, dict) or "command" not in body:
        return cast("Any", body)
    given = cast("dict[str, Any]", body)
    environment = _table(given.get("environment"))
    secrets = _table(given.get("secrets"))
    name = given.get("name")
    if environment is None or secrets is None or not isinstance(name, str):
        return given
    known = {*environment, *secrets}
    if not given.get("clean_env"):
        known |= {*shell}
    wanted = _names(given, name, known)
    added = {
        variable: value for variable, value in wanted.items() if variable not in known
    }
    return {**given, "environment": {**environment, **added}} if added else given


def _table(value: Any) -> dict[str, Any] | None:
    """A table, empty if there is none; None for what is no table."""
    if value is None:
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def _names(body: Mapping[str, Any], name: str, known: set[str]) -> dict[str, str]:
    """The variables for the trackers whose variables are `known`."""
    project = project_of(body)
    names: dict[str, str] = {}
    if any(variable.startswith("WANDB_") for variable in known):
        names[_PROJECT] = project
        names[_RUN] = _run(body, name)
    if _MLFLOW in known:
        # MLflow reads no variable for the name of a run.
        names[_EXPERIMENT] = project
    return names


def project_of(body: Mapping[str, Any]) -> str:
    """The project of the job, or else the name of its folder."""
    folder = Path(str(body.get("workdir") or ""))
    return str(body.get("project") or folder.name or "gpuyard")


def _run(body: Mapping[str, Any], name: str) -> str:
    """The name of the job; of a task of an array, with its index, which the server puts
    in place of `{i}`.
    """
    return f"{name}_{{i}}" if "array" in body else name
