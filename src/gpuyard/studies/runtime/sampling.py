# pyright: basic, reportMissingImports=false
"""Choose the next token: the most probable one, or one drawn at random.

The choice is the same for every layout and batch.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .communicator import Communicator
from .experiment import Experiment
from .generated_answer import TokenConfidence


@dataclass(frozen=True)
class TokenChoice:
    """The chosen tokens `[batch]`, and how sure the model was of each.

    `confidence` is None where tokens were drawn at random.
    """

    tokens: Tensor
    confidence: Sequence[TokenConfidence] | None = None


def draw(seed: int, prompt_id: str, step: int) -> float:
    """Return a number in [0, 1) that depends only on the arguments."""
    digest = hashlib.blake2b(
        f"{seed}/{step}/{prompt_id}".encode(), digest_size=8
    ).digest()
    return (int.from_bytes(digest, "big") >> 11) * 2.0**-53


def sample(
    logits: Tensor, draws: Tensor, temperature: float, top_k: int, top_p: float
) -> Tensor:
    """Draw tokens `[batch]` from logits `[batch, vocabulary]`.

    The token is the first whose cumulated probability exceeds the draw. Only the
    `top_k` most probable tokens are kept, and of these the fewest that hold `top_p` of
    the probability.
    """
    logits = logits.double() / temperature
    kept = min(top_k or logits.shape[-1], logits.shape[-1])
    if kept == logits.shape[-1] and top_p >= 1:
        order = None
        chances = logits.softmax(-1)
    else:
        ordered, order = (
            logits.topk(kept)
            if top_k
            else logits.sort(dim=-1, descending=True, stable=True)
        )
        chances = ordered.softmax(-1)
        chances = chances * (chances.cumsum(-1) - chances < top_p)
    cumulated = chances.cumsum(-1)
    wanted = draws[:, None] * cumulated[:, -1:]
    places = torch.searchsorted(cumulated, wanted, right=True).clamp_(max=kept - 1)
    return (places if order is None else order.gather(-1, places)).squeeze(-1)


class TokenSampler:
    """Chooses tokens when the vocabulary is split over tensor-parallel peers.

    All peers get the chosen tokens.
    """

    def __init__(self, experiment: Experiment, communicator: Communicator) -> None:
        self._experiment = experiment
        self._communicator = communicator

    def choose(
        self, logits: Tensor, prompt_ids: Sequence[str], step: int
    ) -> TokenChoice:
        """Return tokens `[batch]` for this rank's logits `[batch, vocabulary / tp]`."""
        if self._experiment.temperature == 0:
            return self._likeliest(logits)
        whole = torch.cat(self._communicator.gather(logits), -1)
        draws = [
            draw(self._experiment.seed, prompt_id, step) for prompt_id in prompt_ids
        ]
        numbers = torch.tensor(draws, dtype=torch.float64, device=logits.device)
        tokens = sample(
            whole,
            numbers,
            self._experiment.temperature,
            self._experiment.top_k,
            self._experiment.top_p,
        )
        return TokenChoice(tokens)

    def _likeliest(self, logits: Tensor) -> TokenChoice:
        """Choose the most probable tokens; of equal ones the first, as without a split.

        Only the best two of each part, and the sum of its probabilities, are exchanged.
        """
        first = self._communicator.mesh.tp_rank * logits.shape[-1]
        best, token = logits.max(-1)
        others = logits.scatter(-1, token[:, None], float("-inf"))
        second, second_token = others.max(-1)
        sums = logits.float().logsumexp(-1)
        figures = torch.stack(
            (
                best.double(),
                (token + first).double(),
                second.double(),
                (second_token + first).double(),
                sums.double(),
            )
        )
        return _most_probable(torch.stack(self._communicator.gather(figures)))


def _most_probable(figures: Tensor) -> TokenChoice:
    """Choose from `[parts, 5, batch]`: best and second logit with tokens, and the sum.

    The runner-up is the second of the part that has the best, or the best of another.
    """
    best, token, second, second_token, sums = figures.unbind(1)
    winner = best.argmax(0, keepdim=True)
    tokens = token.gather(0, winner).squeeze(0).long()
    is_winner = torch.zeros_like(best, dtype=torch.bool).scatter_(0, winner, value=True)
    others = torch.where(is_winner, second, best)
    other_tokens = torch.where(is_winner, second_token, token)
    runner_up = others.argmax(0, keepdim=True)
    total = sums.logsumexp(0)
    logprobs = best.gather(0, winner).squeeze(0) - total
    runner_up_logprobs = others.gather(0, runner_up).squeeze(0) - total
    runner_up_ids = other_tokens.gather(0, runner_up).squeeze(0).long()
    confidence = [
        TokenConfidence(*values)
        for values in zip(
            logprobs.tolist(),
            runner_up_ids.tolist(),
            runner_up_logprobs.tolist(),
            strict=True,
        )
    ]
    return TokenChoice(tokens, confidence)
