"""Executors: places where a job can run, by name, and the jobs that run there."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from gpuyard.config.verification import (
    ExecutorSettings,
    ToleranceSettings,
    VerificationSettings,
)
from gpuyard.domain.errors import InvalidInputError, quoted
from gpuyard.domain.own_nodes import OWN_NODES
from gpuyard.verification.classes import TRAITS, Class, class_of
from gpuyard.verification.packing import PROGRAM_NAMES

_GPU = "gpu:"
# Priorities of jobs.
_USUAL = 3
_FIRST = 5


@dataclass(frozen=True, slots=True)
class Executor:
    """A place, and the class that it claims to be.

    `settings`: how a job gets there, and what solves prompts there.
    """

    name: str
    gpu_class: Class
    settings: ExecutorSettings

    @property
    def place(self) -> str:
        """The instance's name of the place, which is put into quarantine."""
        return place_of(self.settings)

    @property
    def delivery(self) -> str:
        """How it gets the seed: `stream` or `stdin`.

        Over a stream at the barrier, or on the standard input of a job that starts
        then.
        """
        return "stream" if self.settings.stream else "stdin"

    @property
    def engine(self) -> dict[str, Any]:
        """What solves the prompts there, as it stands in an order."""
        engine = self.settings.engine.model_dump(exclude_none=True)
        return {**engine.pop("options"), **engine}

    def job(self, program: str, order: str) -> dict[str, Any]:
        """The job that solves an order there, by the file `program`.

        It may run in quarantine, because its result decides about that. The folder of
        the program goes along, unless the image contains it. What a trusted executor is
        asked comes first, because nobody is judged while it waits.
        """
        settings = self.settings
        path = PurePath(program)
        return {
            "name": secrets.choice(PROGRAM_NAMES) if settings.solver else path.stem,
            "command": [settings.python, settings.solver or path.name],
            "workdir": None if settings.solver else str(path.parent),
            "stdin": order,
            "provider": settings.provider,
            "provider_options": settings.provider_options,
            "image": settings.image,
            "resources": {"cpus": settings.cpus, "gpus": self._gpus()},
            "environment": {},
            "priority": _FIRST if settings.trusted else _USUAL,
            "allowed": {"quarantined": True},
        }

    def _gpus(self) -> dict[str, Any]:
        """The GPUs of its jobs.

        On our own nodes, whose GPUs are known, the class is demanded, so that a job
        goes to no other GPU of a node that has several kinds.
        """
        settings = self.settings
        gpus: dict[str, Any] = {"count": TRAITS[self.gpu_class].gpus}
        if gpus["count"] and settings.gpu:
            gpus["uuid"] = [settings.gpu]
        elif gpus["count"] and settings.provider == OWN_NODES:
            gpus["gpu_class"] = self.gpu_class.value
        return gpus


def place_of(settings: ExecutorSettings) -> str:
    """The instance's name of the place where an executor's jobs go."""
    return settings.place or (
        f"{_GPU}{settings.gpu}" if settings.gpu else settings.provider
    )


def place_named(name: str, configured: Mapping[str, ExecutorSettings]) -> str:
    """The place of an executor; one that is not in the settings is named by it."""
    settings = configured.get(name)
    return place_of(settings) if settings else name


def executor_named(
    words: str, configured: Mapping[str, ExecutorSettings], gpu_class: Class | None
) -> Executor:
    """The executor that `words` name: from the settings, a provider, or `gpu:UUID`.

    `gpu_class`: the class it claims, needed unless the settings say it. Raises
    InvalidInputError.
    """
    settings = configured.get(words)
    if settings is not None:
        return Executor(words, gpu_class or _class(words, settings), settings)
    if gpu_class is None:
        known = (
            f"one of {', '.join(sorted(configured))}"
            if configured
            else "[verification.executors.NAME]"
        )
        fault = (
            f"{quoted(words)} is not in the settings, which would say what class it"
            " claims"
        )
        raise InvalidInputError.of("EXECUTOR", fault, f"add --class, or name {known}")
    if not words.removeprefix(_GPU).strip():
        raise InvalidInputError.of(
            "EXECUTOR",
            f"{quoted(words)} names no place",
            "name a provider, or gpu:UUID",
        )
    place = (
        {"gpu": words.removeprefix(_GPU)}
        if words.startswith(_GPU)
        else {"provider": words}
    )
    return Executor(
        words, gpu_class, ExecutorSettings.model_validate({"class": gpu_class, **place})
    )


def _class(name: str, settings: ExecutorSettings) -> Class:
    try:
        return class_of(settings.gpu_class)
    except ValueError as error:
        raise InvalidInputError.of(
            f"verification.executors.{name}.class", str(error), "name one of them"
        ) from None


def trusted_executors(
    configured: Mapping[str, ExecutorSettings],
) -> dict[Class, Executor]:
    """The trusted executor of each class, from the settings.

    Raises InvalidInputError when a class has two.
    """
    found: dict[Class, Executor] = {}
    for name, settings in configured.items():
        if settings.trusted:
            executor = executor_named(name, configured, None)
            if rival := found.get(executor.gpu_class):
                fault = (
                    f"trusts {rival.name} and {name}, both of class"
                    f" {executor.gpu_class}"
                )
                raise InvalidInputError.of(
                    "verification.executors", fault, "trust one of each class"
                )
            found[executor.gpu_class] = executor
    return found


def tolerance_of(
    settings: VerificationSettings, cls: Class
) -> ToleranceSettings | None:
    """What the settings say of tolerance for a class; None if only texts count.

    Raises InvalidInputError for a name of no class.
    """
    return tolerances_of(settings).get(cls)


def tolerances_of(settings: VerificationSettings) -> dict[Class, ToleranceSettings]:
    """The classes whose answers may be compared by fingerprints; InvalidInputError."""
    found: dict[Class, ToleranceSettings] = {}
    for name, tolerance in settings.tolerances.items():
        try:
            found[class_of(name)] = tolerance
        except ValueError as error:
            raise InvalidInputError.of(
                f"verification.tolerances.{name}", str(error), "name one of them"
            ) from None
    return found


def judging_executors(settings: VerificationSettings) -> dict[Class, Executor]:
    """The executor that judges each class: its own trusted one, or that of another
    class that its tolerance names.

    Raises InvalidInputError.
    """
    found = trusted_executors(settings.executors)
    for cls, tolerance in tolerances_of(settings).items():
        if tolerance.trusted is not None:
            found[cls] = executor_named(tolerance.trusted, settings.executors, None)
        if judge := found.get(cls):
            _check_tolerance(cls, tolerance, judge)
    return found


def knows_no_draws(engine: str) -> bool:
    """Whether an engine cannot tell which tokens a seed gives."""
    return engine == "vllm"


def _check_tolerance(
    cls: Class, tolerance: ToleranceSettings, trusted: Executor
) -> None:
    """InvalidInputError for a tolerance that the trusted engine makes no sense of."""
    engine = trusted.settings.engine.kind
    field = f"verification.tolerances.{cls}"
    if engine == "openai":
        raise InvalidInputError.of(
            field,
            f"needs fingerprints, and the engine openai of {trusted.name} has none",
            "use transformers or vllm there, or leave it out",
        )
    if tolerance.accept_unknown_draws and not knows_no_draws(engine):
        raise InvalidInputError.of(
            f"{field}.accept_unknown_draws",
            f"makes no sense: the engine {engine} of {trusted.name} can tell which"
            " tokens a seed gives",
            "leave it out",
        )
