"""Model choice: which model answers a prompt that names none.

It is chosen when the prompt is submitted, so every queued prompt has its model.
"""

from collections.abc import Callable, Mapping
from typing import Any

from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.jobspec import JobSpec
from gpuyard.domain.models import ModelSpec
from gpuyard.domain.prompt_fields import refuse_foreign_fields, refuse_gpus
from gpuyard.domain.task_types import LlmTaskType
from gpuyard.domain.tasks import task_type_of

_CHOSEN = ("model_choice", "gpuyard")


class ModelChoice:
    """Chooses among the models `specs`. `defaults`: the model for each type of task.

    `load_s(model)`: in how many seconds the model can answer; 0 if it is loaded,
    infinity if it cannot be loaded.
    """

    def __init__(
        self,
        specs: Mapping[str, ModelSpec],
        defaults: Mapping[LlmTaskType, str],
        load_s: Callable[[str], float],
    ) -> None:
        self._specs = specs
        self._defaults: Mapping[str, str] = {**defaults}
        self._load_s = load_s

    def fill_in(self, spec: JobSpec) -> JobSpec:
        """The spec of a prompt, with its model; raises InvalidInputError."""
        if spec.resources.gpus.count and not spec.resources.gpus.uuid:
            refuse_gpus("resources.gpus")
        refuse_foreign_fields(spec)
        if spec.model is not None:
            self._check(spec.model)
            return spec
        task_type = task_type_of(spec.labels)
        if task_type is None:
            return spec.model_copy(update={"model": self._only_model()})
        name, value = _CHOSEN
        update = {
            "model": self._model_for(task_type),
            "labels": {**spec.labels, name: value},
        }
        return spec.model_copy(update=update)

    @property
    def _known(self) -> str:
        return ", ".join(self._specs) or "none; add [models.NAME] to gpuyard.toml"

    def _check(self, model: str) -> None:
        if model not in self._specs:
            raise InvalidInputError.of(
                "model",
                f"there is no model {model!r}",
                f"configured are: {self._known}",
            )

    def _only_model(self) -> str:
        if len(self._specs) != 1:
            raise InvalidInputError.of(
                "model", "is missing", f"name one of those configured: {self._known}"
            )
        return next(iter(self._specs))

    def _model_for(self, task_type: str) -> str:
        """The default model of the type; else, of the models that are for the type,
        the one that can answer first.
        """
        if task_type in self._defaults:
            return self._defaults[task_type]
        marked: list[str] = []
        for_any_type: list[str] = []
        for model, spec in self._specs.items():
            if task_type in spec.task_types:
                marked.append(model)
            elif not spec.task_types:
                for_any_type.append(model)
        candidates = marked or for_any_type
        if not candidates:
            raise InvalidInputError.of(
                "model",
                f"is missing, and no model is for tasks of the type {task_type!r}",
                f"name one of those configured: {self._known}; or set"
                f" resource_manager.default_models.{task_type}",
            )
        return min(candidates, key=self._load_s)


def without_chosen_model(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """The spec without its model if gpuyard chose it: the same task may be submitted
    again when another model is loaded.
    """
    name, value = _CHOSEN
    if spec.get("labels", {}).get(name) != value:
        return spec
    return {field: given for field, given in spec.items() if field != "model"}
