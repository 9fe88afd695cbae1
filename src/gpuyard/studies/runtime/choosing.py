# pyright: basic, reportMissingImports=false
"""Which token comes next: the likeliest, or one drawn at random, the same for every layout and batch."""

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from .experiment import Experiment
from .links import Links


def draw(seed: int, prompt_id: str, step: int) -> float:
    """A number in [0, 1) that depends on these three alone."""
    digest = hashlib.blake2b(f"{seed}/{step}/{prompt_id}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) * 2.0**-53


def sample(logits: Tensor, draws: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """Logits `[batch, vocabulary]`, draws `[batch]` -> tokens `[batch]`: the first at which the cumulated probability
    passes the draw. The `top_k` likeliest are kept, and of these the fewest that hold `top_p` of the probability."""
    logits = logits.double() / temperature
    kept = min(top_k or logits.shape[-1], logits.shape[-1])
    if kept == logits.shape[-1] and top_p >= 1:
        order, chances = None, logits.softmax(-1)
    else:
        ordered, order = logits.topk(kept) if top_k else logits.sort(dim=-1, descending=True, stable=True)
        chances = ordered.softmax(-1)
        chances = chances * (chances.cumsum(-1) - chances < top_p)
    cumulated = chances.cumsum(-1)
    wanted = draws[:, None] * cumulated[:, -1:]
    places = torch.searchsorted(cumulated, wanted, right=True).clamp_(max=kept - 1)
    return (places if order is None else order.gather(-1, places)).squeeze(-1)


class Chooser:
    """Chooses over a vocabulary that lies in parts on tensor-parallel peers; all of them get to know the tokens."""

    def __init__(self, experiment: Experiment, links: Links) -> None:
        self._experiment, self._links = experiment, links

    def choose(self, logits: Tensor, prompt_ids: Sequence[str], step: int) -> Tensor:
        """This rank's logits `[batch, vocabulary / tp]` -> tokens `[batch]`."""
        if self._experiment.temperature == 0:
            return self._likeliest(logits)
        whole = torch.cat(self._links.gather(logits), -1)
        draws = [draw(self._experiment.seed, prompt_id, step) for prompt_id in prompt_ids]
        numbers = torch.tensor(draws, dtype=torch.float64, device=logits.device)
        return sample(whole, numbers, self._experiment.temperature, self._experiment.top_k, self._experiment.top_p)

    def _likeliest(self, logits: Tensor) -> Tensor:
        """Only the best of each part travels; of equals the first wins, as in one whole."""
        mesh = self._links.mesh
        if mesh.tp_size == 1:
            return logits.argmax(-1)
        best, token = logits.max(-1)
        pairs = torch.stack((best.double(), (token + mesh.tp_rank * logits.shape[-1]).double()))
        values, tokens = torch.stack(self._links.gather(pairs), 1)
        return tokens.gather(0, values.argmax(0, keepdim=True)).squeeze(0).long()
