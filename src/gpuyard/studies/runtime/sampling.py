# pyright: basic, reportMissingImports=false
"""Choose the next token: the most probable one, or one drawn at random.

The choice is the same for every layout and batch.
"""

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from .communicator import Communicator
from .experiment import Experiment


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

    def choose(self, logits: Tensor, prompt_ids: Sequence[str], step: int) -> Tensor:
        """Return tokens `[batch]` for this rank's logits `[batch, vocabulary / tp]`."""
        if self._experiment.temperature == 0:
            return self._likeliest(logits)
        whole = torch.cat(self._communicator.gather(logits), -1)
        draws = [
            draw(self._experiment.seed, prompt_id, step) for prompt_id in prompt_ids
        ]
        numbers = torch.tensor(draws, dtype=torch.float64, device=logits.device)
        return sample(
            whole,
            numbers,
            self._experiment.temperature,
            self._experiment.top_k,
            self._experiment.top_p,
        )

    def _likeliest(self, logits: Tensor) -> Tensor:
        """Return the most probable tokens; of equal ones the first, as without a split.

        Only the best of each part is exchanged.
        """
        mesh = self._communicator.mesh
        if mesh.tp_size == 1:
            return logits.argmax(-1)
        best, token = logits.max(-1)
        pairs = torch.stack(
            (best.double(), (token + mesh.tp_rank * logits.shape[-1]).double())
        )
        values, tokens = torch.stack(self._communicator.gather(pairs), 1)
        return tokens.gather(0, values.argmax(0, keepdim=True)).squeeze(0).long()
