# pyright: basic, reportMissingImports=false
"""Read the parts of a layer from a model's files, by the names of its family."""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from .checkpoint_reader import CheckpointReader
from .decoder_shape import DecoderShape, ExpertsShape, LatentShape
from .feed_forward import ExpertMlps, FeedForward, Mlp, Router
from .head_projection import GroupedHeads, HeadProjection, LatentHeads
from .linear import Linear, Norm

_LATENT_EPS = 1e-6
"""The norms of small vectors have an eps of their own."""
_GATED = ("gate_proj", "up_proj", "down_proj")
_MIXTRAL = ("w1", "w3", "w2")
"""The matrices of an expert: gate, up and down."""


class MoveTensor(Protocol):
    """Moves a tensor to its device, and to the precision of the run or float32."""

    def __call__(self, tensor: Tensor, *, is_exact: bool = False) -> Tensor:
        """With `is_exact` the tensor becomes float32 whatever the precision is."""
        ...


class LayerReader:
    """Reads this rank's part of layers: matrices that share an input are joined."""

    def __init__(
        self,
        shape: DecoderShape,
        tp_size: int,
        checkpoint: CheckpointReader,
        place: MoveTensor,
    ) -> None:
        self._shape = shape
        self._tp_size = tp_size
        self._checkpoint = checkpoint
        self._place = place

    def rows(self, name: str, *shape: int) -> Tensor:
        """Return this rank's rows of a tensor."""
        return self._place(self._checkpoint.rows(name, *shape))

    def whole(self, name: str, *shape: int) -> Tensor:
        """Return a whole tensor."""
        return self._place(self._checkpoint.whole(name, *shape))

    def norm(self, name: str, size: int, eps: float | None = None) -> Norm:
        """Return a norm. An offset of its weight would be lost in 16 bits."""
        weight = self._checkpoint.whole(f"{name}.weight", size)
        offset = self._shape.norm_offset
        if offset:
            placed = self._place(weight.float() + offset, is_exact=True)
        else:
            placed = self._place(weight)
        return Norm(placed, self._shape.norm_eps if eps is None else eps)

    def linear(
        self, modules: Mapping[str, int], inputs: int, *, is_biased: bool = False
    ) -> Linear:
        """Return modules side by side, each with so many outputs, split over peers."""
        weights = [
            self.rows(f"{name}.weight", outputs, inputs)
            for name, outputs in modules.items()
        ]
        biases = (
            [self.rows(f"{name}.bias", outputs) for name, outputs in modules.items()]
            if is_biased
            else []
        )
        # A single one, such as the head, need not be copied once more.
        joined = weights[0] if len(weights) == 1 else torch.cat(weights)
        return Linear(joined.t().contiguous(), torch.cat(biases) if biases else None)

    def columns(self, name: str, outputs: int, inputs: int) -> Linear:
        """Return a module whose inputs are split over peers."""
        weight = self._checkpoint.columns(f"{name}.weight", outputs, inputs)
        return Linear(self._place(weight).t().contiguous())

    def heads(self, attention: str) -> HeadProjection:
        """Return what makes the heads of a layer's attention."""
        shape = self._shape
        if shape.latent is not None:
            return self._latent_heads(attention, shape.latent)
        queries = shape.heads * shape.head_size
        keys = shape.kv_heads * shape.head_size
        modules = {
            f"{attention}.q_proj": queries,
            f"{attention}.k_proj": keys,
            f"{attention}.v_proj": keys,
        }
        query_norm = key_norm = None
        if shape.has_head_norms:
            query_norm = self.norm(f"{attention}.q_norm", shape.head_size)
            key_norm = self.norm(f"{attention}.k_norm", shape.head_size)
        return GroupedHeads(
            self.linear(modules, shape.hidden, is_biased=shape.qkv_bias),
            shape.heads // self._tp_size,
            shape.kv_heads // self._tp_size,
            shape.head_size,
            query_norm,
            key_norm,
        )

    def feed_forward(self, index: int) -> FeedForward:
        """Return what follows the attention of a layer."""
        shape = self._shape
        name = f"model.layers.{index}"
        if shape.experts is not None and shape.has_experts(index):
            return self._experts(name, shape.experts)
        return self._mlp(
            f"{name}.mlp", _GATED, shape.intermediate, is_biased=shape.mlp_bias
        )

    def _latent_heads(self, attention: str, latent: LatentShape) -> LatentHeads:
        shape = self._shape
        queries = shape.heads * shape.head_size
        query_compress = query_norm = None
        if latent.query_rank is None:
            query = self.linear({f"{attention}.q_proj": queries}, shape.hidden)
        else:
            query = self.linear({f"{attention}.q_b_proj": queries}, latent.query_rank)
            query_compress = self._undivided(
                f"{attention}.q_a_proj", latent.query_rank, shape.hidden
            )
            query_norm = self.norm(
                f"{attention}.q_a_layernorm", latent.query_rank, _LATENT_EPS
            )
        expanded = shape.heads * (latent.plain + shape.value_size)
        return LatentHeads(
            shape=latent,
            value_size=shape.value_size,
            query_compress=query_compress,
            query_norm=query_norm,
            query=query,
            compress=self._undivided(
                f"{attention}.kv_a_proj_with_mqa",
                latent.rank + latent.rotated,
                shape.hidden,
            ),
            norm=self.norm(f"{attention}.kv_a_layernorm", latent.rank, _LATENT_EPS),
            expand=self.linear({f"{attention}.kv_b_proj": expanded}, latent.rank),
        )

    def _experts(self, layer: str, shape: ExpertsShape) -> ExpertMlps:
        is_mixtral = self._shape.family == "mixtral"
        home = f"{layer}.block_sparse_moe" if is_mixtral else f"{layer}.mlp"
        names = _MIXTRAL if is_mixtral else _GATED
        experts = tuple(
            self._mlp(f"{home}.experts.{number}", names, shape.intermediate)
            for number in range(shape.count)
        )
        shared = None
        if shape.shared:
            shared = self._mlp(f"{home}.shared_experts", _GATED, shape.shared)
        return ExpertMlps(self._router(home, shape), experts, shared)

    def _router(self, home: str, shape: ExpertsShape) -> Router:
        """Return a router; one that takes sigmoids is computed in float32."""
        is_exact = shape.scores == "sigmoid"
        weight = self._undivided(
            f"{home}.gate", shape.count, self._shape.hidden, is_exact=is_exact
        )
        correction = None
        if is_exact:
            name = f"{home}.gate.e_score_correction_bias"
            correction = self._place(
                self._checkpoint.undivided(name, shape.count), is_exact=True
            )
        return Router(shape, weight, correction)

    def _mlp(
        self,
        name: str,
        matrices: tuple[str, str, str],
        intermediate: int,
        *,
        is_biased: bool = False,
    ) -> Mlp:
        gate, up, down = (f"{name}.{matrix}" for matrix in matrices)
        hidden = self._shape.hidden
        return Mlp(
            self.linear(
                {gate: intermediate, up: intermediate}, hidden, is_biased=is_biased
            ),
            self.columns(down, hidden, intermediate),
            self._shape.activation,
        )

    def _undivided(
        self, name: str, outputs: int, inputs: int, *, is_exact: bool = False
    ) -> Linear:
        """Return a module that every peer has whole."""
        weight = self._checkpoint.undivided(f"{name}.weight", outputs, inputs)
        placed = self._place(weight, is_exact=is_exact)
        return Linear(placed.t().contiguous())
