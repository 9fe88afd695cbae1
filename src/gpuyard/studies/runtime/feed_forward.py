# pyright: basic, reportMissingImports=false
"""The part of a layer after its attention: one MLP, or experts that a router chooses.

Each rank computes some columns of every MLP, so results are parts of a sum over the
tensor-parallel peers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from .decoder_shape import ExpertsShape
from .linear import Linear


class FeedForward(Protocol):
    """What follows the attention of a layer."""

    def __call__(self, rows: Tensor) -> Tensor:
        """Return this rank's part of the sum, `[rows, hidden]`."""
        ...


@dataclass(frozen=True)
class Mlp:
    """An MLP with a gate: `down(activation(gate(x)) * up(x))`.

    `gate_up` makes both side by side. The activation is `silu` or `gelu_tanh`.
    """

    gate_up: Linear
    down: Linear
    activation: str

    def __call__(self, rows: Tensor) -> Tensor:
        """Return this rank's part of the sum, `[rows, hidden]`."""
        gate, up = self.gate_up(rows).chunk(2, -1)
        return self.down(self._activate(gate).mul_(up))

    def _activate(self, gate: Tensor) -> Tensor:
        if self.activation == "gelu_tanh":
            return functional.gelu(gate, approximate="tanh")
        return functional.silu(gate)


@dataclass(frozen=True)
class Router:
    """Chooses experts for each row.

    All tensor-parallel peers have the same rows and weights, so they choose the same
    experts. `correction` is added to scores for the choice only.
    """

    shape: ExpertsShape
    weight: Linear
    correction: Tensor | None = None

    def __call__(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights (float32) and numbers of experts, both `[rows, per_token]`."""
        logits = self.weight(rows.to(self.weight.weight.dtype)).float()
        if self.shape.scores == "sigmoid":
            scores = logits.sigmoid()
        else:
            scores = logits.softmax(-1)
        wanted = scores if self.correction is None else scores + self.correction
        if self.shape.groups > self.shape.groups_per_token:
            wanted = self._in_best_groups(wanted)
        chosen = wanted.topk(self.shape.per_token, -1).indices
        weights = scores.gather(-1, chosen)
        if self.shape.normalised:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return weights * self.shape.scale, chosen

    def _in_best_groups(self, wanted: Tensor) -> Tensor:
        """Rule out experts of all groups but those with the best two experts."""
        grouped = wanted.unflatten(-1, (self.shape.groups, -1))
        best = grouped.topk(2, -1).values.sum(-1)
        chosen = best.topk(self.shape.groups_per_token, -1).indices
        is_out = torch.ones_like(best, dtype=torch.bool)
        is_out.scatter_(-1, chosen, value=False)
        return grouped.masked_fill(is_out[..., None], float("-inf")).flatten(-2)


@dataclass(frozen=True)
class ExpertMlps:
    """Experts, of which each row takes a few; `shared` is one that all rows take."""

    router: Router
    experts: Sequence[Mlp]
    shared: Mlp | None

    def __call__(self, rows: Tensor) -> Tensor:
        """Return this rank's part of the sum, `[rows, hidden]`."""
        weights, chosen = self.router(rows)
        per_token = chosen.shape[1]
        # The places of `chosen` by expert: one wait for the device in all.
        order = chosen.flatten().argsort(stable=True)
        counts = chosen.flatten().bincount(minlength=len(self.experts)).tolist()
        of_place = weights.flatten()
        mixed = torch.zeros_like(rows)
        parts = order.split(counts)
        for expert, places in zip(self.experts, parts, strict=True):
            if not len(places):
                continue
            takers = places // per_token
            part = expert(rows[takers]) * of_place[places, None]
            mixed.index_add_(0, takers, part.to(rows.dtype))
        return mixed if self.shared is None else mixed + self.shared(rows)
