"""The engine `mock`: text that depends only on seed, prompt, settings and model.

Its tokens are words, and its fingerprints are as random as its answers.
"""

import hashlib
import json
import random
import time
from typing import Any, Optional

from .fingerprints import TOP, PrintedAnswer, TokenPrint

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
# The token that ends an answer; those before are words, by their place in the list.
_END = len(_WORDS)


class MockSolverEngine:
    """Answers with random words.

    `delay_s` and `delay_per_prompt_s` of the order's engine slow it down, to try
    deadlines. `version` and `rounding`, to try tolerance: it says that it is of that
    version, and it takes another word with the chance `rounding`, by which its
    log-probabilities are off, too.
    """

    def __init__(self, engine: dict[str, Any], settings: dict[str, Any]) -> None:
        self._delay_s = float(engine.get("delay_s", 0))
        self._delay_per_prompt_s = float(engine.get("delay_per_prompt_s", 0))
        self._version = str(engine.get("version", ""))
        self._rounding = float(engine.get("rounding", 0))
        self._model = [engine["model"]] if engine.get("model") else []
        self._settings = json.dumps(settings, sort_keys=True)
        self._most_words = max(1, min(int(settings["max_tokens"]), _LONGEST))
        self._most_tokens = int(settings["max_tokens"])

    def answer(self, prompts: list[str], seed: int) -> list[str]:
        """Some words for each prompt."""
        time.sleep(self._delay_s + self._delay_per_prompt_s * len(prompts))
        return [_text(self._tokens(prompt, seed)) for prompt in prompts]

    def fingerprints(
        self, prompts: list[str], seed: int, tokens: Optional[list[list[int]]]
    ) -> list[PrintedAnswer]:
        """See `SolverEngine.fingerprints`."""
        if tokens is None:
            time.sleep(self._delay_s + self._delay_per_prompt_s * len(prompts))
            tokens = [self._tokens(prompt, seed) for prompt in prompts]
        return [
            self._printed(prompt, seed, row) for prompt, row in zip(prompts, tokens)
        ]

    def runtime(self) -> dict[str, str]:
        """Its version, if it is to have one."""
        return {"engine": f"mock {self._version}".strip()}

    def close(self) -> None:
        """It holds nothing."""

    def _chance(self, *about: Any) -> random.Random:
        said = json.dumps([*about, self._settings, *self._model]).encode()
        return random.Random(hashlib.sha256(said).digest())

    def _tokens(self, prompt: str, seed: int) -> list[int]:
        """Words, and the end if there is room for it."""
        chance = self._chance(seed, prompt)
        count = chance.randint(min(_SHORTEST, self._most_words), self._most_words)
        words = [_WORDS.index(chance.choice(_WORDS)) for _ in range(count)]
        rounded = [self._rounded(word, seed, prompt, n) for n, word in enumerate(words)]
        return [*rounded, _END][: self._most_tokens]

    def _rounded(self, word: int, seed: int, prompt: str, place: int) -> int:
        chance = random.Random(f"{self._version} {seed} {prompt} {place}")
        return (word + (chance.random() < self._rounding)) % len(_WORDS)

    def _printed(self, prompt: str, seed: int, tokens: list[int]) -> PrintedAnswer:
        """What it would say at each place; that does not depend on what came before."""
        if not all(token <= _END for token in tokens):
            return PrintedAnswer("", whole=False)
        drawn = self._tokens(prompt, seed)
        drawn += [_END] * (len(tokens) - len(drawn))
        prints = [
            self._print(prompt, seed, place, drawn[place])
            for place in range(len(tokens))
        ]
        ends = tokens[-1] == _END or len(tokens) == self._most_tokens
        whole = ends and _END not in tokens[:-1]
        return PrintedAnswer(_text(tokens), prints, whole)

    def _print(self, prompt: str, seed: int, place: int, token: int) -> TokenPrint:
        chance = self._chance(seed, prompt, place)
        noise = random.Random(f"{self._version} {seed} {prompt} {place} off")
        ids = chance.sample(range(_END + 1), TOP)
        logprobs = [
            -2 * rank - chance.random() + noise.gauss(0, self._rounding)
            for rank in range(1, TOP + 1)
        ]
        return TokenPrint(token, ids, sorted(logprobs, reverse=True))


def _text(tokens: list[int]) -> str:
    return " ".join(_WORDS[token] for token in tokens if token != _END)


def load(
    engine: dict[str, Any], settings: dict[str, Any], count: int
) -> MockSolverEngine:
    """Create the engine; it is always ready."""
    return MockSolverEngine(engine, settings)
