"""Trusted executors, whose answers are taken for true, and the generators of prompts."""

from collections.abc import Sequence
from typing import Protocol

from gpuyard.verification.classes import Class


class ExecutorFault(Exception):  # noqa: N818  (a fault of an executor, in the words of this room)
    """An executor could not do what it was asked for: it is gone, failed, or did not answer in time."""


class Trusted(Protocol):
    """A trusted executor of a class. One thing is asked of it at a time, whoever asks: its `name` is locked."""

    @property
    def name(self) -> str:
        """The executor's name."""
        ...

    async def generate(self, cls: Class, count: int, series: int) -> list[list[str]]:
        """Make `series` lists of `count` new prompts each; ExecutorFault. They may hold duplicates."""
        ...

    async def solve(self, cls: Class, prompts: Sequence[str], seed: int) -> dict[str, str]:
        """Answer all prompts at once under `seed`, by prompt; ExecutorFault. Some answers may be missing."""
        ...

    async def prove_memory(self, cls: Class, nonce: str, gigabytes: float) -> str:
        """The digest of the memory proof for a nonce (hex); ExecutorFault."""
        ...


class PromptGenerator(Protocol):
    """Where prompts come from. Another one is named by the setting `generator` and made without arguments.

    `generator_version` is kept with each series: count it up when the prompts become of another sort.
    """

    generator_version: int
    needs_trusted: bool

    async def generate(self, cls: Class, count: int, series: int, trusted: Trusted | None) -> list[list[str]]:
        """As a trusted executor does it. `trusted`, that of the class, is locked meanwhile; None when the generator
        does not need one."""
        ...


class TrustedGenerator:
    """Asks the class's own trusted executor."""

    generator_version = 1
    needs_trusted = True

    async def generate(self, cls: Class, count: int, series: int, trusted: Trusted | None) -> list[list[str]]:
        """As its `Trusted` does."""
        if trusted is None:
            raise ExecutorFault(f"no executor of the class {cls} is trusted")
        return await trusted.generate(cls, count, series)
