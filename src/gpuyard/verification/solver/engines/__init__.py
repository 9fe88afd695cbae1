"""The engines that answer prompts.

Each is imported, with the packages it needs, when an order names it.
"""

import hashlib
import importlib
from typing import Any, Optional, Protocol

from .fingerprints import PrintedAnswer

KINDS = ("mock", "openai", "transformers", "vllm")


class EngineError(Exception):
    """The engine cannot be loaded, or does not answer."""


class SolverEngine(Protocol):
    """A loaded engine."""

    def answer(self, prompts: list[str], seed: int) -> list[str]:
        """The answers in the order of the prompts; EngineError."""
        ...

    def fingerprints(
        self, prompts: list[str], seed: int, tokens: Optional[list[list[int]]]
    ) -> list[PrintedAnswer]:
        """The answers with their fingerprints, in the order of the prompts.

        `tokens`: those of given answers, which are followed: the texts are theirs, and
        the token of a place is the one that sampling gives after those before, if that
        can be told. EngineError.
        """
        ...

    def runtime(self) -> dict[str, str]:
        """What the digits of its answers depend on: its version and number format.

        Empty when it is not known.
        """
        ...

    def close(self) -> None:
        """Release what it holds. Afterwards it cannot answer."""
        ...


def load(engine: dict[str, Any], settings: dict[str, Any], count: int) -> SolverEngine:
    """Load the engine of an order for `count` prompts at once; EngineError."""
    kind = engine.get("kind")
    if kind not in KINDS:
        raise EngineError(f"engine.kind: {kind!r} is none of {', '.join(KINDS)}")
    module: Any = importlib.import_module(f".{kind}", __name__)
    return module.load(engine, settings, count)


def request_seed(seed: int, prompt: str) -> int:
    """The seed of one prompt, below 2**31.

    So it does not matter what else is in the batch.
    """
    digest = hashlib.blake2b(
        f"{seed}/{prompt}".encode("utf-8", "replace"), digest_size=4
    ).digest()
    return int.from_bytes(digest, "big") >> 1


def required(engine: dict[str, Any], field: str) -> str:
    """A setting that the engine needs; EngineError."""
    value = engine.get(field)
    if not isinstance(value, str) or not value:
        raise EngineError(
            f"engine.{field}: must be given for the engine {engine.get('kind')}"
        )
    return value


def token_ids(tokenizer: Any, prompt: str) -> list[int]:
    """The tokens of a prompt.

    It is the only message of a chat when the model has a chat template, else plain
    text.
    """
    if getattr(tokenizer, "chat_template", None):
        chat = [{"role": "user", "content": prompt}]
        text = tokenizer.apply_chat_template(
            chat, tokenize=False, add_generation_prompt=True
        )
        # The template adds its own special tokens.
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])
    return list(tokenizer(prompt)["input_ids"])
