# pyright: basic, reportMissingImports=false
"""The part of the decoder that one rank computes."""

import torch
from torch import Tensor
from torch.nn import functional

from .communicator import Communicator
from .decoder_shape import DecoderShape
from .sequences import Sequences
from .weights import Layer, Weights


class PipelineStage:
    """Some layers of the model, split over tensor-parallel peers.

    The tokens of a batch are rows: `[batch * tokens, …]`.
    """

    def __init__(
        self, shape: DecoderShape, weights: Weights, communicator: Communicator
    ) -> None:
        tp_size = communicator.mesh.tp_size
        self._shape = shape
        self._weights = weights
        self._communicator = communicator
        self._heads = shape.heads // tp_size
        self._kv_heads = shape.kv_heads // tp_size
        self._first_token = shape.vocabulary // tp_size * communicator.mesh.tp_rank

    def embed(self, ids: Tensor) -> Tensor:
        """Embed token ids `[batch, tokens]` as rows.

        Each peer holds a part of the vocabulary.
        """
        table = self._weights.embedding
        ids = ids.flatten()
        assert table is not None
        if self._communicator.mesh.tp_size == 1:
            return self._scaled(table[ids])
        local = ids - self._first_token
        known = (local >= 0) & (local < len(table))
        mine = table[local.where(known, 0)] * known[:, None]
        return self._scaled(self._communicator.sum(mine))

    def empty_rows(self, ids: Tensor) -> Tensor:
        """Return an empty tensor for the rows that another stage computes."""
        like = self._weights.layers[0].out.weight
        return like.new_empty(ids.numel(), self._shape.hidden)

    def logits(self, rows: Tensor, batch: int) -> Tensor:
        """Return float32 logits `[batch, words]` of the last row of each sequence.

        The words are this rank's part of the vocabulary.
        """
        assert self._weights.norm is not None and self._weights.head is not None
        last = rows.view(batch, -1, self._shape.hidden)[:, -1]
        return self._weights.head(self._weights.norm(last)).float()

    def forward(self, rows: Tensor, sequences: Sequences) -> Tensor:
        """Pass rows `[batch * tokens, hidden]` through the layers.

        `sequences` keeps their keys and values.
        """
        turns = sequences.rotations()
        for number, layer in enumerate(self._weights.layers):
            mixed = self._attention(
                layer.input_norm(rows), layer, sequences, number, turns
            )
            rows = rows + self._whole(layer.out(mixed), layer.out_bias)
            part = layer.feed_forward(layer.middle_norm(rows))
            rows = rows + self._whole(part, layer.down_bias)
        return rows

    def _scaled(self, rows: Tensor) -> Tensor:
        """Multiply embeddings by the model's factor, as rounded to their type."""
        scale = self._shape.embedding_scale
        return rows if scale == 1 else rows * rows.new_tensor(scale)

    def _whole(self, part: Tensor, bias: Tensor | None) -> Tensor:
        """Sum the parts of all peers, and add the bias once."""
        whole = self._communicator.sum(part)
        return whole if bias is None else whole + bias

    def _attention(
        self,
        rows: Tensor,
        layer: Layer,
        sequences: Sequences,
        number: int,
        turns: tuple[Tensor, Tensor],
    ) -> Tensor:
        """Return the attention output of each head: `[rows, heads * head_size]`."""
        batch, tokens = sequences.ids.shape
        start = sequences.start
        end = sequences.start + tokens
        queries, keys, values = layer.heads(rows, sequences, turns)
        sequences.keys[number][:, :, start:end] = keys.transpose(1, 2)
        sequences.values[number][:, :, start:end] = values.transpose(1, 2)
        if tokens == 1 and sequences.step:
            return self._read_cache(queries, layer.window, sequences, number).reshape(
                batch, -1
            )
        read = self._read_prompts(queries, keys, values, layer.window, sequences.pads)
        return read.transpose(1, 2).reshape(batch * tokens, -1)

    def _read_cache(
        self, queries: Tensor, window: int | None, sequences: Sequences, number: int
    ) -> Tensor:
        """Attend from one token per sequence to the cache.

        The query heads that share a KV head take the place of the tokens dimension,
        `[batch, kv_heads, heads / kv_heads, head_size]`, so keys and values need not be
        repeated.
        """
        end = sequences.start + 1
        seen = slice(max(0, end - window) if window else 0, end)
        grouped = queries.reshape(
            len(queries), self._kv_heads, -1, self._shape.head_size
        )
        mask = None if sequences.mask is None else sequences.mask[..., seen]
        keys = sequences.keys[number][:, :, seen]
        values = sequences.values[number][:, :, seen]
        return functional.scaled_dot_product_attention(
            grouped, keys, values, mask, scale=self._shape.attention_scale
        )

    def _read_prompts(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        window: int | None,
        pads: list[int],
    ) -> Tensor:
        """Attend within whole prompts, `[batch, heads, tokens, head_size]`.

        Padded prompts are computed one by one without their padding. That needs no mask
        of `batch * tokens * tokens`, and the fast causal kernels can be used.
        """
        group = self._heads // self._kv_heads
        queries = queries.transpose(1, 2)
        keys, values = (
            part.transpose(1, 2).repeat_interleave(group, 1) for part in (keys, values)
        )
        mask = _sliding_mask(queries, window)
        scale = self._shape.attention_scale
        if not any(pads):
            return functional.scaled_dot_product_attention(
                queries, keys, values, mask, is_causal=mask is None, scale=scale
            )
        read = torch.zeros_like(values)
        for row, pad in enumerate(pads):
            mine = (slice(row, row + 1), slice(None), slice(pad, None))
            part = None if mask is None else mask[pad:, pad:]
            read[mine] = functional.scaled_dot_product_attention(
                queries[mine],
                keys[mine],
                values[mine],
                part,
                is_causal=part is None,
                scale=scale,
            )
        return read


def _sliding_mask(queries: Tensor, window: int | None) -> Tensor | None:
    """Return the mask `[tokens, tokens]` of a sliding window, true for visible tokens.

    None when every token's window holds all tokens before it.
    """
    tokens = queries.shape[2]
    if window is None or tokens <= window:
        return None
    return (
        torch.ones(tokens, tokens, dtype=torch.bool, device=queries.device)
        .tril()
        .triu(1 - window)
    )
