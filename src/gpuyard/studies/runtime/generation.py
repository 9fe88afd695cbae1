"""The loop over batches, whatever the engine, and the rows it makes."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .answers import Answer
from .prompts import Prompt


class Engine(Protocol):
    """What answers batches. `bytes_share` is what an ideal rank would have read."""

    name: str
    version: str
    bytes_read: int
    bytes_share: int

    def load(self) -> None:
        """Get ready; raises `RunError`."""
        ...

    def warm_up(self) -> None:
        """Do once what the first prompt should not pay for."""
        ...

    def generate(self, batch: Sequence[Prompt]) -> Sequence[Answer]:
        """Answers in the order of the prompts."""
        ...

    def communication_s(self) -> float | None:
        """Seconds of communication since it was made."""
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
        """For the metrics."""
        return {
            "variant": self.variant, "size": self.size, "prompt_tokens": self.prompt_tokens,
            "tokens": sum(row["tokens_generated"] for row in self.rows), "latency_ms": self.seconds * 1000,
            "ttft_ms": min((row["ttft_ms"] for row in self.rows if row["ttft_ms"] is not None), default=None),
        }  # fmt: skip


def run_generation_loop(
    engine: Engine,
    batches: Iterable[list[Prompt]],
    make_row: Callable[[Answer, int], dict[str, Any]],
    keep: Callable[[BatchDone], None],
) -> float:
    """Answer batch after batch, and give each to `keep` when it is done. Returns the seconds spent on answers."""
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
