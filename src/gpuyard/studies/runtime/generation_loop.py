"""The loop over batches, for any engine, and the rows it makes."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .generated_answer import GeneratedAnswer
from .prompts import Prompt


class InferenceEngine(Protocol):
    """An engine that answers batches of prompts.

    `bytes_share` is what a rank would read with an ideal split.
    """

    name: str
    version: str
    bytes_read: int
    bytes_share: int

    def load(self) -> None:
        """Load the model; raises `RunError`."""
        ...

    def warm_up(self) -> None:
        """Do the work that only the first prompt causes."""
        ...

    def generate(self, batch: Sequence[Prompt]) -> Sequence[GeneratedAnswer]:
        """Answers in the order of the prompts."""
        ...

    def communication_s(self) -> float | None:
        """Return the seconds of communication since the engine was created."""
        ...


@dataclass(frozen=True)
class BatchDone:
    """The rows of one batch, and how long it took in all."""

    rows: list[dict[str, Any]]
    variant: str
    size: int
    prompt_tokens: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return the batch as an entry of the metrics."""
        return {
            "variant": self.variant,
            "size": self.size,
            "prompt_tokens": self.prompt_tokens,
            "tokens": sum(row["tokens_generated"] for row in self.rows),
            "latency_ms": self.seconds * 1000,
            "ttft_ms": min(
                (row["ttft_ms"] for row in self.rows if row["ttft_ms"] is not None),
                default=None,
            ),
        }


def run_generation_loop(
    engine: InferenceEngine,
    batches: Iterable[list[Prompt]],
    make_row: Callable[[GeneratedAnswer, int], dict[str, Any]],
    keep: Callable[[BatchDone], None],
) -> float:
    """Generate batch after batch, and call `keep` after each.

    Returns the seconds spent in generation.
    """
    total = 0.0
    for number, batch in enumerate(batches):
        began = time.perf_counter()
        answers = engine.generate(batch)
        seconds = time.perf_counter() - began
        total += seconds
        rows = [make_row(answer, number) for answer in answers]
        tokens = sum(len(prompt.token_ids) for prompt in batch)
        keep(BatchDone(rows, batch[0].variant, len(batch), tokens, seconds))
    return total
