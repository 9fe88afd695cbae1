"""Prompt generators: the trusted executor by default, or a class of your own."""

from importlib import import_module
from typing import Protocol, cast

from gpuyard.domain.errors import InvalidInputError
from gpuyard.verification.classes import Class
from gpuyard.verification.trusted_executor import ExecutorFault, TrustedExecutor


class PromptGenerator(Protocol):
    """Makes the prompts of new series.

    The setting `generator` names another class, which is created without arguments.
    `generator_version` is stored with each series; increase it when the kind of prompts
    changes. `needs_trusted`: whether `generate` is given the class's trusted executor.
    """

    generator_version: int
    needs_trusted: bool

    async def generate(
        self, cls: Class, count: int, series: int, trusted: TrustedExecutor | None
    ) -> list[list[str]]:
        """Make `series` lists of `count` prompts each, which may hold duplicates.

        `trusted` is the trusted executor of the class, which is locked meanwhile. It is
        None when the generator does not need one.
        """
        ...


class TrustedGenerator:
    """Asks the trusted executor of the class."""

    generator_version = 1
    needs_trusted = True

    async def generate(
        self, cls: Class, count: int, series: int, trusted: TrustedExecutor | None
    ) -> list[list[str]]:
        """See `PromptGenerator.generate`."""
        if trusted is None:
            raise ExecutorFault(f"no executor of the class {cls} is trusted")
        return await trusted.generate(cls, count, series)


def load_generator(name: str | None) -> PromptGenerator:
    """Create the generator that the settings name as `module:Class`.

    None gives the default. Raises InvalidInputError when it cannot be loaded.
    """
    if name is None:
        return TrustedGenerator()
    module, _, thing = name.partition(":")
    try:
        made = getattr(import_module(module), thing)()
    except Exception as error:  # a foreign module can raise anything
        fault = f"{name} cannot be loaded: {type(error).__name__}: {error}"
        raise InvalidInputError.of(
            "verification.generator", fault, "name an installed module:Class"
        ) from error
    version = getattr(made, "generator_version", None)
    if not isinstance(version, int) or not callable(getattr(made, "generate", None)):
        fault = f"{name} has no `generator_version` (a number) or no `generate`"
        raise InvalidInputError.of(
            "verification.generator",
            fault,
            "see PromptGenerator in gpuyard.verification.generators",
        )
    return cast(PromptGenerator, made)
