# pyright: basic, reportMissingImports=false
"""The weights of one rank: the layers of its stage, cut over its tensor-parallel peers."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .checkpoint import Checkpoint
from .launch import Mesh
from .shape import Shape


@dataclass(frozen=True)
class Linear:
    """`x @ weight + bias`. The weight lies as `[in, out]`: on CPU that multiplies few rows up to twice as fast."""

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, rows: Tensor) -> Tensor:
        """`[n, in]` -> `[n, out]`."""
        return rows @ self.weight if self.bias is None else torch.addmm(self.bias, rows, self.weight)


@dataclass(frozen=True)
class Layer:
    """One decoder layer. `out` and `down` make partial sums, to which `out_bias` and `down_bias` are added once."""

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
    """A stage: the first one has the embedding `[vocabulary / tp, hidden]`, the last one the norm and the head."""

    layers: tuple[Layer, ...]
    embedding: Tensor | None
    norm: Tensor | None
    head: Linear | None


def stage_layers(layers: int, stages: int, stage: int) -> range:
    """The layers of a stage; where they do not divide, the earlier stages have one more."""
    share, more = divmod(layers, stages)
    start = stage * share + min(stage, more)
    return range(start, start + share + (stage < more))


def load_model_weights(shape: Shape, mesh: Mesh, checkpoint: Checkpoint, place: Callable[[Tensor], Tensor]) -> Weights:
    """Read this rank's part and nothing else; `place` brings a tensor to its device and precision."""
    reader = _Reader(shape, checkpoint, place)
    layers = tuple(reader.layer(index) for index in stage_layers(shape.layers, mesh.pp_size, mesh.pp_rank))
    embedding = head = None
    if mesh.is_first:
        embedding = reader.rows("model.embed_tokens.weight", shape.vocabulary, shape.hidden)
    if mesh.is_last and shape.tied and embedding is not None:
        head = Linear(embedding.t())
    elif mesh.is_last:
        name = "model.embed_tokens" if shape.tied else "lm_head"
        head = Linear(reader.rows(f"{name}.weight", shape.vocabulary, shape.hidden).t().contiguous())
    norm = reader.whole("model.norm.weight", shape.hidden) if mesh.is_last else None
    checkpoint.close()
    return Weights(layers, embedding, norm, head)


class _Reader:
    """Reads layers as a stage uses them: q, k and v in one matrix, gate and up in another."""

    def __init__(self, shape: Shape, checkpoint: Checkpoint, place: Callable[[Tensor], Tensor]) -> None:
        self._shape, self._checkpoint, self._place = shape, checkpoint, place

    def rows(self, name: str, *shape: int) -> Tensor:
        return self._place(self._checkpoint.rows(name, *shape))

    def whole(self, name: str, *shape: int) -> Tensor:
        return self._place(self._checkpoint.whole(name, *shape))

    def layer(self, index: int) -> Layer:
        shape, name = self._shape, f"model.layers.{index}"
        queries, keys = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
        attention, mlp = f"{name}.self_attn", f"{name}.mlp"
        sides = {f"{attention}.q_proj": queries, f"{attention}.k_proj": keys, f"{attention}.v_proj": keys}
        wings = {f"{mlp}.gate_proj": shape.intermediate, f"{mlp}.up_proj": shape.intermediate}
        return Layer(
            window=shape.windows[index],
            input_norm=self.whole(f"{name}.input_layernorm.weight", shape.hidden),
            qkv=self._joined(sides, shape.qkv_bias),
            out=self._columns(f"{attention}.o_proj.weight", shape.hidden, queries),
            out_bias=self.whole(f"{attention}.o_proj.bias", shape.hidden) if shape.out_bias else None,
            middle_norm=self.whole(f"{name}.post_attention_layernorm.weight", shape.hidden),
            gate_up=self._joined(wings, shape.mlp_bias),
            down=self._columns(f"{mlp}.down_proj.weight", shape.hidden, shape.intermediate),
            down_bias=self.whole(f"{mlp}.down_proj.bias", shape.hidden) if shape.mlp_bias else None,
        )

    def _joined(self, modules: dict[str, int], biased: bool) -> Linear:
        """Modules with so many outputs each, side by side."""
        weights = [self.rows(f"{name}.weight", outputs, self._shape.hidden) for name, outputs in modules.items()]
        biases = [self.rows(f"{name}.bias", outputs) for name, outputs in modules.items()] if biased else []
        return Linear(torch.cat(weights).t().contiguous(), torch.cat(biases) if biases else None)

    def _columns(self, name: str, outputs: int, inputs: int) -> Linear:
        return Linear(self._place(self._checkpoint.columns(name, outputs, inputs)).t().contiguous())
