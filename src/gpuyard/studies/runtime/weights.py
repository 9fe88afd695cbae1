# pyright: basic, reportMissingImports=false
"""The weights of one rank: its stage's layers, split over tensor-parallel peers."""

from dataclasses import dataclass

from torch import Tensor

from .checkpoint_reader import CheckpointReader
from .decoder_shape import DecoderShape
from .feed_forward import FeedForward
from .head_projection import HeadProjection
from .launch import Mesh
from .layer_reader import LayerReader, MoveTensor
from .linear import Linear, Norm


@dataclass(frozen=True)
class Layer:
    """One decoder layer.

    `out` and `feed_forward` give partial sums; `out_bias` and `down_bias` are added
    once to the whole sum.
    """

    window: int | None
    input_norm: Norm
    heads: HeadProjection
    out: Linear
    out_bias: Tensor | None
    middle_norm: Norm
    feed_forward: FeedForward
    down_bias: Tensor | None


@dataclass(frozen=True)
class Weights:
    """The weights of a stage.

    The first stage has the embedding `[vocabulary / tp, hidden]`, the last one the norm
    and the head.
    """

    layers: tuple[Layer, ...]
    embedding: Tensor | None
    norm: Norm | None
    head: Linear | None


def stage_layers(layers: int, stages: int, stage: int) -> range:
    """Return the layers of a stage; the earlier stages take the remainder."""
    share, more = divmod(layers, stages)
    start = stage * share + min(stage, more)
    return range(start, start + share + (stage < more))


def load_model_weights(
    shape: DecoderShape, mesh: Mesh, checkpoint: CheckpointReader, place: MoveTensor
) -> Weights:
    """Read this rank's weights and nothing else.

    `place` moves a tensor to its device and precision.
    """
    reader = LayerReader(shape, mesh.tp_size, checkpoint, place)
    layers = tuple(
        _layer(reader, shape, index)
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
        head = reader.linear({name: shape.vocabulary}, shape.hidden)
    norm = reader.norm("model.norm", shape.hidden) if mesh.is_last else None
    checkpoint.close()
    return Weights(layers, embedding, norm, head)


def _layer(reader: LayerReader, shape: DecoderShape, index: int) -> Layer:
    name = f"model.layers.{index}"
    attention = f"{name}.self_attn"
    out_bias = down_bias = None
    if shape.out_bias:
        out_bias = reader.whole(f"{attention}.o_proj.bias", shape.hidden)
    if shape.mlp_bias:
        down_bias = reader.whole(f"{name}.mlp.down_proj.bias", shape.hidden)
    mixed = shape.heads * shape.value_size
    return Layer(
        window=shape.windows[index],
        input_norm=reader.norm(f"{name}.input_layernorm", shape.hidden),
        heads=reader.heads(attention),
        out=reader.columns(f"{attention}.o_proj", shape.hidden, mixed),
        out_bias=out_bias,
        middle_norm=reader.norm(f"{name}.post_attention_layernorm", shape.hidden),
        feed_forward=reader.feed_forward(index),
        down_bias=down_bias,
    )
