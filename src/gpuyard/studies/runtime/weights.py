# pyright: basic, reportMissingImports=false
"""The weights of one rank: its stage's layers, split over tensor-parallel peers."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .checkpoint_reader import CheckpointReader
from .decoder_shape import DecoderShape
from .launch import Mesh


@dataclass(frozen=True)
class Linear:
    """The layer `x @ weight + bias`.

    The weight is stored as `[in, out]`: on CPUs this multiplies few rows up to twice as
    fast.
    """

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, rows: Tensor) -> Tensor:
        """`[n, in]` -> `[n, out]`."""
        return (
            rows @ self.weight
            if self.bias is None
            else torch.addmm(self.bias, rows, self.weight)
        )


@dataclass(frozen=True)
class Layer:
    """One decoder layer.

    `out` and `down` give partial sums; `out_bias` and `down_bias` are added once to the
    whole sum.
    """

    window: int | None
    input_norm: Tensor
    qkv: Linear
    out: Linear
    out_bias: Tensor | None
    middle_norm: Tensor
    gate_up: Linear
    down: Linear
    down_bias: Tensor | None


@dataclass(frozen=True)
class Weights:
    """The weights of a stage.

    The first stage has the embedding `[vocabulary / tp, hidden]`, the last one the norm
    and the head.
    """

    layers: tuple[Layer, ...]
    embedding: Tensor | None
    norm: Tensor | None
    head: Linear | None


def stage_layers(layers: int, stages: int, stage: int) -> range:
    """Return the layers of a stage; the earlier stages take the remainder."""
    share, more = divmod(layers, stages)
    start = stage * share + min(stage, more)
    return range(start, start + share + (stage < more))


def load_model_weights(
    shape: DecoderShape,
    mesh: Mesh,
    checkpoint: CheckpointReader,
    place: Callable[[Tensor], Tensor],
) -> Weights:
    """Read this rank's weights and nothing else.

    `place` moves a tensor to its device and precision.
    """
    reader = _LayerReader(shape, checkpoint, place)
    layers = tuple(
        reader.layer(index)
        for index in stage_layers(shape.layers, mesh.pp_size, mesh.pp_rank)
    )
    embedding = head = None
    if mesh.is_first:
        embedding = reader.rows(
            "model.embed_tokens.weight", shape.vocabulary, shape.hidden
        )
    if mesh.is_last and shape.tied and embedding is not None:
        head = Linear(embedding.t())
    elif mesh.is_last:
        name = "model.embed_tokens" if shape.tied else "lm_head"
        head = Linear(
            reader.rows(f"{name}.weight", shape.vocabulary, shape.hidden)
            .t()
            .contiguous()
        )
    norm = reader.whole("model.norm.weight", shape.hidden) if mesh.is_last else None
    checkpoint.close()
    return Weights(layers, embedding, norm, head)


class _LayerReader:
    """Reads layers with q, k and v in one matrix, and gate and up in another."""

    def __init__(
        self,
        shape: DecoderShape,
        checkpoint: CheckpointReader,
        place: Callable[[Tensor], Tensor],
    ) -> None:
        self._shape = shape
        self._checkpoint = checkpoint
        self._place = place

    def rows(self, name: str, *shape: int) -> Tensor:
        return self._place(self._checkpoint.rows(name, *shape))

    def whole(self, name: str, *shape: int) -> Tensor:
        return self._place(self._checkpoint.whole(name, *shape))

    def layer(self, index: int) -> Layer:
        shape = self._shape
        name = f"model.layers.{index}"
        queries = shape.heads * shape.head_size
        keys = shape.kv_heads * shape.head_size
        attention = f"{name}.self_attn"
        mlp = f"{name}.mlp"
        attention_outputs = {
            f"{attention}.q_proj": queries,
            f"{attention}.k_proj": keys,
            f"{attention}.v_proj": keys,
        }
        mlp_outputs = {
            f"{mlp}.gate_proj": shape.intermediate,
            f"{mlp}.up_proj": shape.intermediate,
        }
        return Layer(
            window=shape.windows[index],
            input_norm=self.whole(f"{name}.input_layernorm.weight", shape.hidden),
            qkv=self._joined(attention_outputs, shape.qkv_bias),
            out=self._columns(f"{attention}.o_proj.weight", shape.hidden, queries),
            out_bias=(
                self.whole(f"{attention}.o_proj.bias", shape.hidden)
                if shape.out_bias
                else None
            ),
            middle_norm=self.whole(
                f"{name}.post_attention_layernorm.weight", shape.hidden
            ),
            gate_up=self._joined(mlp_outputs, shape.mlp_bias),
            down=self._columns(
                f"{mlp}.down_proj.weight", shape.hidden, shape.intermediate
            ),
            down_bias=(
                self.whole(f"{mlp}.down_proj.bias", shape.hidden)
                if shape.mlp_bias
                else None
            ),
        )

    def _joined(self, modules: dict[str, int], biased: bool) -> Linear:
        """Modules with so many outputs each, side by side."""
        weights = [
            self.rows(f"{name}.weight", outputs, self._shape.hidden)
            for name, outputs in modules.items()
        ]
        biases = (
            [self.rows(f"{name}.bias", outputs) for name, outputs in modules.items()]
            if biased
            else []
        )
        return Linear(
            torch.cat(weights).t().contiguous(), torch.cat(biases) if biases else None
        )

    def _columns(self, name: str, outputs: int, inputs: int) -> Linear:
        return Linear(
            self._place(self._checkpoint.columns(name, outputs, inputs))
            .t()
            .contiguous()
        )
