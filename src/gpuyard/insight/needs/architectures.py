"""How many weights the usual architectures have, from the sizes in their
configuration.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpuyard.insight.needs.values import Value, whole


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a transformer; `inner` is the width of its feed-forward layers."""

    layers: int
    width: int
    inner: int
    heads: int
    key_heads: int
    head_width: int
    vocabulary: int
    positions: int
    decoder_layers: int
    gated: bool
    tied: bool
    patch: int
    image: int


def _gpt2(sizes: Sizes) -> int:
    width = sizes.width
    block = 4 * width * width + 2 * width * sizes.inner + 9 * width + sizes.inner
    embeddings = (sizes.vocabulary + sizes.positions) * width
    return embeddings + sizes.layers * block + 2 * width


def _neox(sizes: Sizes) -> int:
    return _gpt2(sizes) + (sizes.vocabulary - sizes.positions) * sizes.width


def _bert(sizes: Sizes) -> int:
    width = sizes.width
    block = 4 * width * width + 2 * width * sizes.inner + 9 * width + sizes.inner
    embeddings = (sizes.vocabulary + sizes.positions + 2) * width + 2 * width
    pooler = width * width + width
    return embeddings + sizes.layers * block + pooler


def _llama(sizes: Sizes) -> int:
    width = sizes.width
    queries = 2 * width * sizes.heads * sizes.head_width
    keys = 2 * width * sizes.key_heads * sizes.head_width
    block = queries + keys + 3 * width * sizes.inner + 2 * width
    tables = 1 if sizes.tied else 2
    return tables * sizes.vocabulary * width + sizes.layers * block + width


def _t5(sizes: Sizes) -> int:
    attention = 4 * sizes.width * sizes.heads * sizes.head_width
    forward = (3 if sizes.gated else 2) * sizes.width * sizes.inner
    encoder = sizes.layers * (attention + forward)
    decoder = sizes.decoder_layers * (2 * attention + forward)
    return sizes.vocabulary * sizes.width + encoder + decoder


def _bart(sizes: Sizes) -> int:
    width = sizes.width
    attention = 4 * width * width + 4 * width
    forward = 2 * width * sizes.inner + sizes.inner + 5 * width
    encoder = sizes.layers * (attention + forward)
    decoder = sizes.decoder_layers * (2 * attention + forward)
    embeddings = (sizes.vocabulary + 2 * sizes.positions) * width
    return embeddings + encoder + decoder


def _vit(sizes: Sizes) -> int:
    width = sizes.width
    patches = (sizes.image // max(sizes.patch, 1)) ** 2
    block = 4 * width * width + 2 * width * sizes.inner + 9 * width + sizes.inner
    embeddings = 3 * sizes.patch**2 * width + (patches + 2) * width
    return embeddings + sizes.layers * block + width * width


@dataclass(frozen=True, slots=True)
class Architecture:
    """A family: its formula, kind, and the defaults of its configuration."""

    count: Callable[[Sizes], int]
    kind: str
    defaults: Mapping[str, int]


def _defaults(
    layers: int, width: int, inner: int, heads: int, vocabulary: int, positions: int
) -> dict[str, int]:
    return {
        "layers": layers,
        "width": width,
        "inner": inner,
        "heads": heads,
        "vocabulary": vocabulary,
        "positions": positions,
    }


ARCHITECTURES: Mapping[str, Architecture] = {
    "GPT2": Architecture(_gpt2, "decoder", _defaults(12, 768, 0, 12, 50257, 1024)),
    "OpenAIGPT": Architecture(_gpt2, "decoder", _defaults(12, 768, 0, 12, 40478, 512)),
    "GPTNeo": Architecture(_gpt2, "decoder", _defaults(24, 2048, 0, 16, 50257, 2048)),
    "GPTNeoX": Architecture(
        _neox, "decoder", _defaults(44, 6144, 24576, 64, 50432, 2048)
    ),
    "OPT": Architecture(_gpt2, "decoder", _defaults(12, 768, 3072, 12, 50272, 2048)),
    "Bloom": Architecture(_gpt2, "decoder", _defaults(2, 64, 0, 8, 250880, 0)),
    "Llama": Architecture(
        _llama, "decoder", _defaults(32, 4096, 11008, 32, 32000, 2048)
    ),
    "Mistral": Architecture(
        _llama, "decoder", {**_defaults(32, 4096, 14336, 32, 32000, 4096), "keys": 8}
    ),
    "Qwen2": Architecture(
        _llama, "decoder", _defaults(32, 4096, 22016, 32, 151936, 4096)
    ),
    "Qwen3": Architecture(
        _llama, "decoder", _defaults(32, 4096, 22016, 32, 151936, 4096)
    ),
    "Gemma": Architecture(
        _llama, "decoder", {**_defaults(28, 3072, 24576, 16, 256000, 8192), "tied": 1}
    ),
    "Phi": Architecture(_neox, "decoder", _defaults(24, 2048, 8192, 32, 51200, 2048)),
    "Bert": Architecture(_bert, "encoder", _defaults(12, 768, 3072, 12, 30522, 512)),
    "Roberta": Architecture(_bert, "encoder", _defaults(12, 768, 3072, 12, 50265, 512)),
    "XLMRoberta": Architecture(
        _bert, "encoder", _defaults(12, 768, 3072, 12, 30522, 512)
    ),
    "DistilBert": Architecture(
        _bert, "encoder", _defaults(6, 768, 3072, 12, 30522, 512)
    ),
    "Electra": Architecture(_bert, "encoder", _defaults(12, 256, 1024, 4, 30522, 512)),
    "ModernBert": Architecture(
        _bert, "encoder", _defaults(22, 768, 1152, 12, 50368, 0)
    ),
    "T5": Architecture(
        _t5, "seq2seq", {**_defaults(6, 512, 2048, 8, 32128, 512), "head_width": 64}
    ),
    "Bart": Architecture(_bart, "seq2seq", _defaults(12, 1024, 4096, 16, 50265, 1024)),
    "MBart": Architecture(_bart, "seq2seq", _defaults(12, 1024, 4096, 16, 50265, 1024)),
    "Marian": Architecture(
        _bart, "seq2seq", _defaults(12, 1024, 4096, 16, 58101, 1024)
    ),
    "ViT": Architecture(
        _vit,
        "vision",
        {**_defaults(12, 768, 3072, 12, 0, 197), "patch": 16, "image": 224},
    ),
    "DeiT": Architecture(
        _vit,
        "vision",
        {**_defaults(12, 768, 3072, 12, 0, 197), "patch": 16, "image": 224},
    ),
}

_NAMES: Mapping[str, tuple[str, ...]] = {
    "layers": (
        "n_layer",
        "num_hidden_layers",
        "num_layers",
        "n_layers",
        "encoder_layers",
    ),
    "width": ("n_embd", "hidden_size", "d_model", "dim"),
    "inner": (
        "intermediate_size",
        "n_inner",
        "d_ff",
        "ffn_dim",
        "hidden_dim",
        "encoder_ffn_dim",
    ),
    "heads": (
        "n_head",
        "num_attention_heads",
        "num_heads",
        "n_heads",
        "encoder_attention_heads",
    ),
    "keys": ("num_key_value_heads",),
    "head_width": ("head_dim", "d_kv"),
    "vocabulary": ("vocab_size",),
    "positions": ("n_positions", "max_position_embeddings", "n_ctx"),
    "decoders": ("num_decoder_layers", "decoder_layers"),
    "patch": ("patch_size",),
    "image": ("image_size",),
    "tied": ("tie_word_embeddings",),
}


def architecture_of(name: str) -> Architecture | None:
    """The family of a class such as `GPT2LMHeadModel` or `BertConfig`."""
    found = [family for family in ARCHITECTURES if name.startswith(family)]
    return ARCHITECTURES[max(found, key=len)] if found else None


def sizes_of(architecture: Architecture, given: Mapping[str, Value]) -> Sizes | None:
    """The sizes that a configuration says, with defaults for the others; None if one
    that was given is not known.
    """
    found = dict(architecture.defaults)
    for size, names in _NAMES.items():
        for name in names:
            if name in given and given[name] is not None:
                value = int(given[name]) if given[name] is True else whole(given[name])
                if value is None:
                    return None
                found[size] = value
    width = found["width"]
    heads = max(found["heads"], 1)
    feed_forward = given.get("feed_forward_proj", "")
    return Sizes(
        layers=found["layers"],
        width=width,
        inner=found["inner"] or 4 * width,
        heads=heads,
        key_heads=found.get("keys", heads),
        head_width=found.get("head_width", width // heads),
        vocabulary=found["vocabulary"],
        positions=found["positions"],
        decoder_layers=found.get("decoders", found["layers"]),
        gated=isinstance(feed_forward, str) and "gated" in feed_forward,
        tied=bool(found.get("tied", 0)),
        patch=found.get("patch", 16),
        image=found.get("image", 224),
    )
