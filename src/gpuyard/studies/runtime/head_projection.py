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
        # Queries and keys are turned together: that is one kernel, and no copy.
        turned, values = heads.split((self.heads + self.kv_heads, self.kv_heads), 2)
        turned = sequences.rotation.turn(self._normed(turned), *turns)
        queries, keys = turned.split((self.heads, self.kv_heads), 2)
        return queries, keys, values

    def _normed(self, heads: Tensor) -> Tensor:
        """Norm each head of queries and keys, where the model does so."""
        if self.query_norm is None or self.key_norm is None:
            return heads
        queries, keys = heads.split((self.heads, self.kv_heads), 2)
        return torch.cat((self.query_norm(queries), self.key_norm(keys)), 2)


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
        rotation = sequences.rotation
        plain_queries, rotated_queries = self._queries(rows, sequences)
        plain_keys, shared_keys, values = self._keys_and_values(rows, sequences)
        rotated_queries = rotation.turn(self._paired(rotated_queries), *turns)
        shared_keys = rotation.turn(self._paired(shared_keys), *turns)
        heads = plain_keys.shape[2]
        rotated_keys = shared_keys.expand(-1, -1, heads, -1)
        queries = torch.cat((plain_queries, rotated_queries), -1)
        keys = torch.cat((plain_keys, rotated_keys), -1)
        return queries, keys, values

    def _queries(self, rows: Tensor, sequences: Sequences) -> tuple[Tensor, Tensor]:
        """Return the plain channels of the queries, and those to be rotated.

        Each is `[batch, tokens, heads, channels]`.
        """
        batch, tokens = sequences.ids.shape
        plain = self.shape.plain
        rotated = self.shape.rotated
        if self.query_compress is not None and self.query_norm is not None:
            rows = self.query_norm(self.query_compress(rows))
        queries = self.query(rows).view(batch, tokens, -1, plain + rotated)
        return queries.split((plain, rotated), -1)

    def _keys_and_values(
        self, rows: Tensor, sequences: Sequences
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the plain channels of the keys, those to be rotated, and the values.

        Each is `[batch, tokens, heads, channels]`; the second has one head for all.
        """
        batch, tokens = sequences.ids.shape
        plain = self.shape.plain
        rotated = self.shape.rotated
        latent, shared_keys = self.compress(rows).split((self.shape.rank, rotated), -1)
        shared_keys = shared_keys.view(batch, tokens, 1, rotated)
        expanded = self.expand(self.norm(latent))
        expanded = expanded.view(batch, tokens, -1, plain + self.value_size)
        plain_keys, values = expanded.split((plain, self.value_size), -1)
        return plain_keys, shared_keys, values

    def _paired(self, heads: Tensor) -> Tensor:
        """Put the first channels of all pairs before the second ones."""
        if not self.shape.is_interleaved:
            return heads
        return heads.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
