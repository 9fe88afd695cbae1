"""Executors: places where a job can run, by the names people give them, and the jobs that reach them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuyard.config.verification import ExecutorSettings
from gpuyard.domain.errors import InvalidInputError, quoted
from gpuyard.verification.classes import TRAITS, Class, class_of

_GPU = "gpu:"


@dataclass(frozen=True, slots=True)
class Executor:
    """A place and the class it claims to be. `settings` say how a job gets there and what solves prompts there."""

    name: str
    gpu_class: Class
    settings: ExecutorSettings

    @property
    def place(self) -> str:
        """The yard's word for it, under which it is put into quarantine."""
        return place_of(self.settings)

    @property
    def delivery(self) -> str:
        """How the seed comes to it: over a `stream` at the barrier, or on the `stdin` of a job that starts then."""
        return "stream" if self.settings.stream else "stdin"

    @property
    def engine(self) -> dict[str, Any]:
        """What solves the prompts there, as an order has it."""
        engine = self.settings.engine.model_dump(exclude_none=True)
        return {**engine.pop("options"), **engine}

    def job(self, name: str, order: str, workdir: str) -> dict[str, Any]:
        """The job that solves an order there. It runs where nothing else may, since it decides about just that.

        `workdir` holds the solver's files, for who has none of its own.
        """
        settings, traits = self.settings, TRAITS[self.gpu_class]
        gpus: dict[str, Any] = {"count": traits.gpus}
        if traits.gpus and settings.gpu:
            gpus["uuid"] = [settings.gpu]
        return {
            "name": name, "command": [settings.python, settings.solver or "solve.py"],
            "workdir": None if settings.solver else workdir, "stdin": order,
            "provider": settings.provider, "provider_options": settings.provider_options, "image": settings.image,
            "resources": {"cpus": settings.cpus, "gpus": gpus}, "environment": {}, "allowed": {"quarantined": True},
        }  # fmt: skip


def place_of(settings: ExecutorSettings) -> str:
    """Where the jobs of an executor go, in the yard's word for it."""
    return settings.place or (f"{_GPU}{settings.gpu}" if settings.gpu else settings.provider)


def named(words: str, configured: Mapping[str, ExecutorSettings], gpu_class: Class | None) -> Executor:
    """The executor that `words` mean: one of the settings by name, a provider, or `gpu:UUID`.

    `gpu_class` is the class it is held to, which only the settings make unnecessary. InvalidInputError.
    """
    settings = configured.get(words)
    if settings is not None:
        return Executor(words, gpu_class or _class(words, settings), settings)
    if gpu_class is None:
        known = f"one of {', '.join(sorted(configured))}" if configured else "[verification.executors.NAME]"
        fault = f"{quoted(words)} is not in the settings, so nobody says what it claims to be"
        raise InvalidInputError.of("EXECUTOR", fault, f"add --class, or name {known}")
    if not words.removeprefix(_GPU).strip():
        raise InvalidInputError.of("EXECUTOR", f"{quoted(words)} names no place", "name a provider, or gpu:UUID")
    place = {"gpu": words.removeprefix(_GPU)} if words.startswith(_GPU) else {"provider": words}
    return Executor(words, gpu_class, ExecutorSettings.model_validate({"class": gpu_class, **place}))


def _class(name: str, settings: ExecutorSettings) -> Class:
    try:
        return class_of(settings.gpu_class)
    except ValueError as error:
        raise InvalidInputError.of(f"verification.executors.{name}.class", str(error), "name one of them") from None


def trusted(configured: Mapping[str, ExecutorSettings]) -> dict[Class, Executor]:
    """The executor whose answers are taken for true, by class; InvalidInputError for two of one class."""
    found: dict[Class, Executor] = {}
    for name, settings in configured.items():
        if settings.trusted:
            executor = named(name, configured, None)
            if rival := found.get(executor.gpu_class):
                fault = f"trusts {rival.name} and {name}, both of class {executor.gpu_class}"
                raise InvalidInputError.of("verification.executors", fault, "trust one of each class")
            found[executor.gpu_class] = executor
    return found
