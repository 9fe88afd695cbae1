# pyright: basic, reportMissingImports=false
"""From rows of hidden states to the queries, keys and values of this rank's heads."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from .decoder_shape import LatentShape
from .linear import Linear, Norm
from .sequences import Sequences

Turns = tuple[Tensor, Tensor]
"""Cosines and sines of positions, as `Rotation.at` gives them."""
Heads = tuple[Tensor, Tensor, Tensor]
"""Queries, keys and values, each `[batch, tokens, heads, size]`."""


class HeadProjection(Protocol):
    """What makes the heads of a layer's attention."""

    def __call__(self, rows: Tensor, sequences: Sequences, turns: Turns) -> Heads:
        """Return the heads of rows `[batch * tokens, hidden]`, turned by position."""
        ...


@dataclass(frozen=True)
class GroupedHeads:
    """Heads straight from the rows; several query heads may share a KV head.

    `qkv` makes queries, keys and values side by side. Some models norm each head of
    queries and keys.
    """

    qkv: Linear
    heads: int
    kv_heads: int
    head_size: int
    query_norm: Norm | None = None
    key_norm: Norm | None = None

    def __call__(self, rows: Tensor, sequences: Sequences, turns: Turns) -> Heads:
        """Return the heads of rows `[batch * tokens, hidden]`, turned by position."""
        batch, tokens = sequences.ids.shape
        heads = self.qkv(rows).view(batch, tokens, -1, self.head_size)
        turned, values = heads.split((self.heads + self.kv_heads, self.kv_heads), 2)
        if self.query_norm is not None and self.key_norm is not None:
            queries, keys = turned.split((self.heads, self.kv_heads), 2)
            turned = torch.cat((self.query_norm(queries), self.key_norm(keys)), 2)
        queries, keys = sequences.rotation.turn(turned, *turns).split(
            (self.heads, self.kv_heads), 2
        )
        return queries, keys, values


@dataclass(frozen=True)
class LatentHeads:
    """Heads whose keys and values come from one small vector per token.

    `compress` gives that vector and the rotated channels of the keys, which all heads
    share. `expand` makes the other channels of keys, and the values. Queries come from
    the rows, or from a small vector of their own.
    """

    shape: LatentShape
    value_size: int
    query_compress: Linear | None
    query_norm: Norm | None
    query: Linear
    compress: Linear
    norm: Norm
    expand: Linear

    def __call__(self, rows: Tensor, sequences: Sequences, turns: Turns) -> Heads:
        """Return the heads of rows `[batch * tokens, hidden]`, turned by position."""
        batch, tokens = sequences.ids.shape
        shape = self.shape
        if self.query_compress is not None and self.query_norm is not None:
            queries = self.query(self.query_norm(self.query_compress(rows)))
        else:
            queries = self.query(rows)
        queries = queries.view(batch, tokens, -1, shape.plain + shape.rotated)
        latent, shared = self.compress(rows).split((shape.rank, shape.rotated), -1)
        expanded = self.expand(self.norm(latent))
        expanded = expanded.view(batch, tokens, -1, shape.plain + self.value_size)
        plain_keys, values = expanded.split((shape.plain, self.value_size), -1)
        plain_queries, rotated = queries.split((shape.plain, shape.rotated), -1)
        shared = shared.view(batch, tokens, 1, shape.rotated)
        rotated = sequences.rotation.turn(self._paired(rotated), *turns)
        shared = sequences.rotation.turn(self._paired(shared), *turns)
        shared = shared.expand(-1, -1, plain_keys.shape[2], -1)
        queries = torch.cat((plain_queries, rotated), -1)
        return queries, torch.cat((plain_keys, shared), -1), values

    def _paired(self, heads: Tensor) -> Tensor:
        """Put the first channels of all pairs before the second ones."""
        if not self.shape.is_interleaved:
            return heads
        return heads.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
