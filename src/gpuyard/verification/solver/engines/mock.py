"""The engine `mock`: text that depends only on seed, prompt and settings."""

import hashlib
import json
import random
import time
from typing import Any

_WORDS = (
    "amber",
    "basin",
    "cedar",
    "delta",
    "ember",
    "fjord",
    "grove",
    "heath",
    "inlet",
    "jetty",
    "knoll",
    "larch",
    "marsh",
    "north",
    "ocean",
    "plain",
    "quarry",
    "ridge",
    "shore",
    "tarn",
    "upland",
    "vale",
    "willow",
    "yew",
)
_SHORTEST = 8
_LONGEST = 24


class MockSolverEngine:
    """Answers with random words.

    `delay_s` and `delay_per_prompt_s` of the order's engine slow it down, to try
    deadlines.
    """

    def __init__(self, engine: dict[str, Any], settings: dict[str, Any]) -> None:
        self._delay_s = float(engine.get("delay_s", 0))
        self._delay_per_prompt_s = float(engine.get("delay_per_prompt_s", 0))
        self._settings = json.dumps(settings, sort_keys=True)
        self._most_words = max(1, min(int(settings["max_tokens"]), _LONGEST))

    def answer(self, prompts: list[str], seed: int) -> list[str]:
        """Some words for each prompt."""
        time.sleep(self._delay_s + self._delay_per_prompt_s * len(prompts))
        return [self._one(prompt, seed) for prompt in prompts]

    def close(self) -> None:
        """It holds nothing."""

    def _one(self, prompt: str, seed: int) -> str:
        said = json.dumps([seed, prompt, self._settings]).encode()
        chance = random.Random(hashlib.sha256(said).digest())
        count = chance.randint(min(_SHORTEST, self._most_words), self._most_words)
        return " ".join(chance.choice(_WORDS) for _ in range(count))


def load(
    engine: dict[str, Any], settings: dict[str, Any], count: int
) -> MockSolverEngine:
    """Create the engine; it is always ready."""
    return MockSolverEngine(engine, settings)
