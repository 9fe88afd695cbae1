"""The tokens that the model generated for a prompt, and their row in the shard."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .prompts import Prompt

_DIGITS = 5


@dataclass(frozen=True)
class TokenConfidence:
    """How probable a token was, and the most probable other token.

    Log-probabilities are natural logarithms.
    """

    logprob: float
    runner_up_id: int
    runner_up_logprob: float


@dataclass
class GeneratedAnswer:
    """The answer to a prompt.

    `times` are seconds from the start of the batch to each token, if the engine
    measures them. `finished_s` is the time of the last token. `confidence` is of each
    token, or empty. A server tells the `text`, how many tokens it has (`token_count`),
    and `times` of its parts; of the tokens perhaps nothing.
    """

    prompt: Prompt
    token_ids: list[int] = field(default_factory=list[int])
    times: list[float] = field(default_factory=list[float])
    finished_s: float = 0.0
    finish_reason: str = "length"
    confidence: list[TokenConfidence] = field(default_factory=list[TokenConfidence])
    text: str | None = None
    token_count: int | None = None

    @property
    def knows_tokens(self) -> bool:
        """Whether the ids of all tokens are known."""
        return len(self.token_ids) == self.count

    @property
    def count(self) -> int:
        """The number of tokens."""
        return len(self.token_ids) if self.token_count is None else self.token_count

    def add(
        self,
        token: int,
        now: float,
        eos_ids: frozenset[int],
        confidence: TokenConfidence | None = None,
    ) -> None:
        """Add a token; after one of `eos_ids`, further tokens are ignored."""
        if self.done:
            return
        self.token_ids.append(token)
        self.times.append(now)
        self.finished_s = now
        if confidence is not None:
            self.confidence.append(confidence)
        if token in eos_ids:
            self.finish_reason = "stop"

    @property
    def done(self) -> bool:
        """Whether the model ended the answer."""
        return self.finish_reason == "stop"


def row_of(
    answer: GeneratedAnswer,
    batch: int,
    *,
    rank: int,
    strategy_id: str,
    decode: Callable[[list[int]], str],
) -> dict[str, Any]:
    """Return the row of an answer in the shard.

    `token_ms` are the times between tokens: the first is `ttft_ms`, their sum is
    `latency_ms`.
    """
    steps = [end - start for start, end in zip([0.0, *answer.times], answer.times)]  # noqa: B905
    return {
        "prompt_id": answer.prompt.prompt_id,
        "variant": answer.prompt.variant,
        "strategy_id": strategy_id,
        "completion": (
            decode(answer.token_ids) if answer.text is None else answer.text
        ),
        "latency_ms": answer.finished_s * 1000,
        "tokens_generated": answer.count,
        "ttft_ms": steps[0] * 1000 if steps else None,
        "token_ms": [step * 1000 for step in steps],
        "token_ids": answer.token_ids if answer.knows_tokens else None,
        **_confidence_of(answer),
        "prompt_tokens": len(answer.prompt.token_ids),
        "finish_reason": answer.finish_reason,
        "batch": batch,
        "rank": rank,
    }


def _confidence_of(answer: GeneratedAnswer) -> dict[str, Any]:
    """Return `logprobs`, `runner_up_ids` and `runner_up_logprobs`, one per token.

    There are none unless the confidence of every token is known.
    """
    if not answer.confidence or len(answer.confidence) != answer.count:
        return {}
    confidence = answer.confidence
    return {
        "logprobs": [round(one.logprob, _DIGITS) for one in confidence],
        "runner_up_ids": [one.runner_up_id for one in confidence],
        "runner_up_logprobs": [
            round(one.runner_up_logprob, _DIGITS) for one in confidence
        ],
    }
