"""Engines: what answers prompts. Each is imported when an order names it, with the packages it needs."""

import hashlib
import importlib
from typing import Any, Protocol

KINDS = ("mock", "openai", "transformers", "vllm")


class EngineError(Exception):
    """The engine cannot be had here, or does not answer."""


class Engine(Protocol):
    """Something that answers, loaded and ready."""

    def answer(self, prompts: list[str], seed: int) -> list[str]:
        """The answers in the order of the prompts. Raises `EngineError`."""
        ...

    def close(self) -> None:
        """Give back what it holds; it answers no more."""
        ...


def load(engine: dict[str, Any], settings: dict[str, Any], count: int) -> Engine:
    """The engine of an order, ready to answer `count` prompts at once. Raises `EngineError`."""
    kind = engine.get("kind")
    if kind not in KINDS:
        raise EngineError(f"engine.kind: {kind!r} is none of {', '.join(KINDS)}")
    module: Any = importlib.import_module(f".{kind}", __name__)
    return module.load(engine, settings, count)


def request_seed(seed: int, prompt: str) -> int:
    """A prompt's own, below 2**31, so that it does not matter what else is in its batch."""
    digest = hashlib.blake2b(f"{seed}/{prompt}".encode("utf-8", "replace"), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1


def required(engine: dict[str, Any], field: str) -> str:
    """A text that the engine cannot do without. Raises `EngineError`."""
    value = engine.get(field)
    if not isinstance(value, str) or not value:
        raise EngineError(f"engine.{field}: must be given for the engine {engine.get('kind')}")
    return value
