"""A generator of prompts that asks no model, so that hundreds of series cost nothing."""

from random import SystemRandom

from gpuyard.verification.classes import Class
from gpuyard.verification.trusted_executor import TrustedExecutor

GENERATOR = f"{__name__}:QuickPrompts"


class QuickPrompts:
    """Questions with numbers that nobody can guess."""

    generator_version = 1
    needs_trusted = False

    async def generate(
        self, cls: Class, count: int, series: int, trusted: TrustedExecutor | None
    ) -> list[list[str]]:
        """See `PromptGenerator.generate`."""
        draw = SystemRandom()
        return [
            [f"Tell me a story about {draw.getrandbits(64)}." for _ in range(count)]
            for _ in range(series)
        ]
