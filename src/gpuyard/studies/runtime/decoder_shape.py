"""What a model looks like, from its own `config.json`."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from .errors import RunError

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma", "mixtral", "deepseek_v3")
ROPES = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
}
"""The kinds of rotary embedding, and the numbers that each must state."""
TIED_BY_DEFAULT = ("gemma",)
"""Families whose head is the embedding unless `config.json` says otherwise."""
HEAD_SIZES = {"gemma": 256, "qwen3": 128}
"""The size of a head in families that do not derive it from the hidden size."""
_ACTIVATIONS = {
    "gemma": {"gelu": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"},
}
_SILU = {"silu": "silu"}


@dataclass(frozen=True)
class ExpertsShape:
    """The experts of a layer, of which each token takes `per_token`.

    A router scores them by `scores`: `softmax`, or `sigmoid` with a correction that
    only counts for the choice. Experts are in `groups`; a token takes them from
    `groups_per_token` of these. `scale` multiplies the scores of those taken, which
    are made to sum to 1 if `normalised`. All tokens pass the `shared` expert, of so
    many columns. The first `dense_layers` layers have no experts.
    """

    count: int
    per_token: int
    intermediate: int
    scores: str = "softmax"
    normalised: bool = True
    groups: int = 1
    groups_per_token: int = 1
    scale: float = 1.0
    shared: int = 0
    dense_layers: int = 0


@dataclass(frozen=True)
class LatentShape:
    """Attention whose keys and values come from one small vector per token.

    `query_rank` is the size of such a vector for queries, or None; `rank` that for keys
    and values. A key has `plain` channels of its head, and `rotated` ones that all
    heads share. `is_interleaved` tells how pairs of rotated channels are stored.
    """

    query_rank: int | None
    rank: int
    plain: int
    rotated: int
    is_interleaved: bool


@dataclass(frozen=True)
class DecoderShape:
    """The sizes and features of a decoder.

    `head_size` is that of queries and keys, `value_size` that of values.
    `windows` is the attention window of each layer in tokens, or None for all. `rope`
    holds `rope_type`, `rope_theta` and the numbers of its scaling. `norm_offset` is
    added to the weights of norms, `embedding_scale` multiplies embeddings.
    `attention_scale` multiplies the products of queries and keys; None is one by the
    root of `head_size`. `has_head_norms` tells of norms of queries and keys.
    """

    family: str
    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    norm_eps: float
    tied: bool
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    windows: tuple[int | None, ...]
    rope: dict[str, Any]
    eos_ids: frozenset[int]
    value_size: int
    activation: str = "silu"
    norm_offset: float = 0.0
    embedding_scale: float = 1.0
    attention_scale: float | None = None
    has_head_norms: bool = False
    experts: ExpertsShape | None = None
    latent: LatentShape | None = None

    @property
    def rotated_size(self) -> int:
        """The number of channels of a head that the rotary embedding turns."""
        return self.head_size if self.latent is None else self.latent.rotated

    def has_experts(self, layer: int) -> bool:
        """Whether a layer has experts in place of one MLP."""
        return self.experts is not None and layer >= self.experts.dense_layers

    def check_layout(self, tp_size: int, pp_size: int) -> None:
        """Raises `RunError` naming what a layout cannot divide."""
        parts = {
            "attention heads": self.heads,
            "KV heads": self.kv_heads,
            "intermediate size": self.intermediate,
            "vocabulary": self.vocabulary,
        }
        if self.experts is not None:
            parts["intermediate size of an expert"] = self.experts.intermediate
        for name, size in parts.items():
            if size % tp_size:
                raise RunError(
                    f"tp_size {tp_size} does not divide the model's {name} ({size})"
                )
        if pp_size > self.layers:
            raise RunError(
                f"pp_size {pp_size} is more than the model's layers ({self.layers})"
            )


def read_shape(folder: Path) -> DecoderShape:
    """Read `config.json` and `generation_config.json`.

    Raises `RunError` on a family or feature that is not known.
    """
    config = read_config(folder / "config.json")
    family = config.get("model_type")
    if family not in FAMILIES:
        raise RunError(
            f"{folder} is a model of the family {family!r}; the torch engine knows"
            f" {', '.join(FAMILIES)}"
        )
    how = rounding_of(config)
    if how:
        raise RunError(
            f"{folder} has rounded weights ({how}); the torch engine reads those of"
            " fp32, bf16 and fp16"
        )
    try:
        return _shape(folder, family, config)
    except KeyError as error:
        raise RunError(f"{folder / 'config.json'} has no {error}") from error


def rounding_of(config: dict[str, Any]) -> str:
    """How a model's files say that its weights are rounded, such as fp8; else empty."""
    stated = config.get("quantization_config")
    if not stated:
        return ""
    return str(stated.get("quant_method") or "unknown method")


def _shape(folder: Path, family: str, config: dict[str, Any]) -> DecoderShape:
    heads = config["num_attention_heads"]
    layers = config["num_hidden_layers"]
    hidden = config["hidden_size"]
    bias = bool(config.get("attention_bias")) and family in ("llama", "qwen3", "gemma")
    rope = _rope(folder, config)
    latent = _latent(folder, config) if family == "deepseek_v3" else None
    head_size = config.get("head_dim") or HEAD_SIZES.get(family) or hidden // heads
    if latent is not None:
        head_size = latent.plain + latent.rotated
    return DecoderShape(
        family=family,
        vocabulary=config["vocab_size"],
        hidden=hidden,
        intermediate=config["intermediate_size"],
        layers=layers,
        heads=heads,
        kv_heads=heads if latent else config.get("num_key_value_heads") or heads,
        head_size=head_size,
        norm_eps=config.get("rms_norm_eps", 1e-6),
        tied=bool(config.get("tie_word_embeddings", family in TIED_BY_DEFAULT)),
        qkv_bias=bias or family == "qwen2",
        out_bias=bias,
        mlp_bias=bool(config.get("mlp_bias")) and family == "llama",
        windows=_windows(family, config, layers),
        rope=rope,
        eos_ids=read_eos_ids(folder),
        value_size=config["v_head_dim"] if latent else head_size,
        activation=_activation(folder, family, config),
        norm_offset=1.0 if family == "gemma" else 0.0,
        embedding_scale=hidden**0.5 if family == "gemma" else 1.0,
        attention_scale=_yarn_scale(rope, head_size) if latent else None,
        has_head_norms=family == "qwen3",
        experts=_experts(family, config),
        latent=latent,
    )


def _activation(folder: Path, family: str, config: dict[str, Any]) -> str:
    known = _ACTIVATIONS.get(family, _SILU)
    name = config.get("hidden_act") or next(iter(known))
    if name not in known:
        raise RunError(
            f"{folder} has the activation {name!r}; the torch engine knows"
            f" {', '.join(known)} for {family}"
        )
    return known[name]


def _experts(family: str, config: dict[str, Any]) -> ExpertsShape | None:
    if family == "mixtral":
        return ExpertsShape(
            count=config["num_local_experts"],
            per_token=config["num_experts_per_tok"],
            intermediate=config["intermediate_size"],
        )
    if family != "deepseek_v3":
        return None
    intermediate = config["moe_intermediate_size"]
    return ExpertsShape(
        count=config["n_routed_experts"],
        per_token=config["num_experts_per_tok"],
        intermediate=intermediate,
        scores="sigmoid",
        normalised=bool(config.get("norm_topk_prob", True)),
        groups=config["n_group"],
        groups_per_token=config["topk_group"],
        scale=config["routed_scaling_factor"],
        shared=intermediate * config["n_shared_experts"],
        dense_layers=config["first_k_dense_replace"],
    )


def _latent(folder: Path, config: dict[str, Any]) -> LatentShape:
    if config.get("attention_bias"):
        raise RunError(
            f"{folder} has biases in its attention; the torch engine knows"
            " deepseek_v3 without them"
        )
    return LatentShape(
        query_rank=config.get("q_lora_rank"),
        rank=config["kv_lora_rank"],
        plain=config["qk_nope_head_dim"],
        rotated=config["qk_rope_head_dim"],
        is_interleaved=bool(config.get("rope_interleave", True)),
    )


def _yarn_scale(rope: dict[str, Any], head_size: int) -> float | None:
    """Return the attention scale of a model whose context yarn has lengthened."""
    factor = rope.get("factor") or 1.0
    share = rope.get("mscale_all_dim")
    if rope["rope_type"] == "default" or not share or factor <= 1:
        return None
    return head_size**-0.5 * (0.1 * share * math.log(factor) + 1.0) ** 2


def _windows(
    family: str, config: dict[str, Any], layers: int
) -> tuple[int | None, ...]:
    """Return the attention window of each layer.

    Mistral has one in every layer, and Mixtral if it names one. Qwen has one in the
    layers that it lists, and only if it is switched on. The others have none.
    """
    is_qwen = family in ("qwen2", "qwen3")
    window = None
    if family == "mixtral":
        window = config.get("sliding_window")
    elif family == "mistral" or (is_qwen and config.get("use_sliding_window")):
        window = config.get("sliding_window", 4096)
    if not is_qwen:
        return (window,) * layers
    first = config.get("max_window_layers", 28)
    kinds = config.get("layer_types") or [
        "full" if i < first else "sliding_attention" for i in range(layers)
    ]
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _rope(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of the rotary embedding.

    transformers 5 calls them `rope_parameters`, version 4 `rope_theta` and
    `rope_scaling`.
    """
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = 1_000_000.0 if config["model_type"] == "mixtral" else 10_000.0
    rope.setdefault("rope_theta", config.get("rope_theta") or theta)
    rope["rope_type"] = rope.get("rope_type") or rope.get("type") or "default"
    rope.setdefault(
        "original_max_position_embeddings", config.get("max_position_embeddings")
    )
    if rope["rope_type"] not in ROPES or rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise RunError(
            f"{folder} has the rope {rope['rope_type']!r}; the torch engine knows"
            f" {', '.join(ROPES)}, whole"
        )
    for name in ROPES[rope["rope_type"]]:
        if not isinstance(rope[name], int | float):
            raise TypeError(f"{name} of the rotary embedding is {rope[name]!r}")
    return rope


def read_eos_ids(folder: Path) -> frozenset[int]:
    """Return the ids that end a text.

    They are in `generation_config.json`, or else in `config.json`.
    """
    path = folder / "generation_config.json"
    found: Any = read_config(path).get("eos_token_id") if path.exists() else None
    if found is None:
        found = read_config(folder / "config.json").get("eos_token_id")
    if found is None:
        return frozenset()
    if not isinstance(found, list):
        return frozenset((found,))
    return frozenset(cast("list[int]", found))


def read_config(path: Path) -> dict[str, Any]:
    """Read one of a model's JSON files; raises `RunError`."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read: {error}") from error
