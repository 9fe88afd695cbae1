"""What a model looks like, from its own `config.json`."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from .errors import RunError

FAMILIES = ("llama", "mistral", "qwen2")
ROPES = ("default", "linear", "llama3")


@dataclass(frozen=True)
class DecoderShape:
    """The sizes and features of a decoder.

    `windows` is the attention window of each layer in tokens, or None for all. `rope`
    holds `rope_type`, `rope_theta` and the numbers of its scaling.
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

    def check_layout(self, tp_size: int, pp_size: int) -> None:
        """Raises `RunError` naming what a layout cannot divide."""
        parts = {
            "attention heads": self.heads,
            "KV heads": self.kv_heads,
            "intermediate size": self.intermediate,
            "vocabulary": self.vocabulary,
        }
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
    config = _json(folder / "config.json")
    family = config.get("model_type")
    if family not in FAMILIES:
        raise RunError(
            f"{folder} is a model of the family {family!r}; the torch engine knows"
            f" {', '.join(FAMILIES)}"
        )
    if config.get("hidden_act", "silu") != "silu":
        raise RunError(
            f"{folder} has the activation {config['hidden_act']!r}; the torch engine"
            " knows silu"
        )
    try:
        return _shape(folder, family, config)
    except KeyError as error:
        raise RunError(f"{folder / 'config.json'} has no {error}") from error


def _shape(folder: Path, family: str, config: dict[str, Any]) -> DecoderShape:
    heads = config["num_attention_heads"]
    layers = config["num_hidden_layers"]
    bias = bool(config.get("attention_bias")) and family == "llama"
    return DecoderShape(
        family=family,
        vocabulary=config["vocab_size"],
        hidden=config["hidden_size"],
        intermediate=config["intermediate_size"],
        layers=layers,
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_size=config.get("head_dim") or config["hidden_size"] // heads,
        norm_eps=config.get("rms_norm_eps", 1e-6),
        tied=bool(config.get("tie_word_embeddings")),
        qkv_bias=bias or family == "qwen2",
        out_bias=bias,
        mlp_bias=bool(config.get("mlp_bias")) and family == "llama",
        windows=_windows(family, config, layers),
        rope=_rope(folder, config),
        eos_ids=read_eos_ids(folder),
    )


def _windows(
    family: str, config: dict[str, Any], layers: int
) -> tuple[int | None, ...]:
    """Return the attention window of each layer.

    Mistral has one in every layer. Qwen2 has one in the layers that it lists, and only
    if it is switched on. Llama has none.
    """
    window = config.get("sliding_window", 4096)
    if family == "llama" or (
        family == "qwen2" and not config.get("use_sliding_window")
    ):
        window = None
    if family != "qwen2":
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
    rope.setdefault("rope_theta", config.get("rope_theta") or 10000.0)
    rope["rope_type"] = rope.get("rope_type") or rope.get("type") or "default"
    rope.setdefault(
        "original_max_position_embeddings", config.get("max_position_embeddings")
    )
    if rope["rope_type"] not in ROPES or rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise RunError(
            f"{folder} has the rope {rope['rope_type']!r}; the torch engine knows"
            f" {', '.join(ROPES)}, whole"
        )
    return rope


def read_eos_ids(folder: Path) -> frozenset[int]:
    """Return the ids that end a text.

    They are in `generation_config.json`, or else in `config.json`.
    """
    path = folder / "generation_config.json"
    found: Any = _json(path).get("eos_token_id") if path.exists() else None
    if found is None:
        found = _json(folder / "config.json").get("eos_token_id")
    if found is None:
        return frozenset()
    if not isinstance(found, list):
        return frozenset((found,))
    return frozenset(cast("list[int]", found))


def _json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read: {error}") from error
