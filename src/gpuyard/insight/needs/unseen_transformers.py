"""Transformers of classes that are not there to be read: their sizes stand in the call,
under one of the usual names.
"""

# The values of a followed program can be anything.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import re
from collections.abc import Mapping, Sequence
from typing import Any

from gpuyard.insight.needs.architectures import Sizes
from gpuyard.insight.needs.values import Parameter, Thing, Value, number, whole

_WIDTH = (
    "d_model",
    "n_embd",
    "hidden_size",
    "dim",
    "embed_dim",
    "embed_size",
    "emb_dim",
    "model_dim",
)
_LAYERS = ("n_layers", "n_layer", "num_layers", "num_hidden_layers", "depth")
_HEADS = ("n_heads", "n_head", "num_heads", "nhead", "heads", "num_attention_heads")
_INNER = (
    "d_ff",
    "d_inner",
    "ffn_dim",
    "intermediate_size",
    "dim_feedforward",
    "mlp_dim",
)
_VOCABULARY = ("vocab_size", "num_tokens", "n_vocab", "vocabulary_size")
_POSITIONS = (
    "block_size",
    "max_seq_len",
    "max_sequence_length",
    "max_len",
    "n_ctx",
    "context_length",
)
_MOST_TABLES = 200
_DEEPEST = 3
# Of the second language of a translation, which only a decoder has.
_TARGET = re.compile(r"(^|_)(trg|tgt|target|decoder)(_|$)")
_NO_MODEL = re.compile(r"Config|Arg|Param|Option|Token|Attention|Block|Layer$|Dataset")
# Other rules know what these are.
_KNOWN = (
    "torch.",
    "transformers.",
    "diffusers.",
    "builtins.",
    "peft.",
    "trl.",
    "keras",
)


def unseen_transformer(thing: Thing, *, is_named: bool = False) -> bool:
    """An object that was given width, layers and heads: together, no other kind of
    model has these.
    """
    name = thing.last_name
    is_class = name[:1].isupper() and not _NO_MODEL.search(name)
    if not is_named and (not is_class or thing.name.startswith(_KNOWN)):
        return False
    given = _given(thing)
    width = _first(given, _WIDTH)
    layers = _first(given, _LAYERS)
    heads = _first(given, _HEADS)
    if not width or not layers or not heads:
        return False
    has_decoder = any(_TARGET.search(each) for each in given)
    sizes = _sizes(given, width, layers, heads, has_decoder)
    thing.attributes["_backbone"] = Parameter(_count(sizes))
    thing.facts["sizes"] = sizes
    thing.facts["model_name"] = name
    thing.facts["unknown_size"] = True  # of all that is not in its blocks
    thing.facts["kind"] = _kind(sizes, has_decoder)
    return True


def sized_transformer(given: Sequence[Thing]) -> Thing | None:
    """A transformer of the sizes that a configuration file or the command line says,
    for programs that make it in a way that cannot be followed.
    """
    for options in given:
        tables = [options.keywords, *_tables_in(options.keywords, 0)]
        for table in tables[:_MOST_TABLES]:
            (width, layers, heads) = (
                _first(table, names) for names in (_WIDTH, _LAYERS, _HEADS)
            )
            if width and layers and heads:
                made = Thing("gpuyard.Transformer", options.place)
                made.keywords = {k: v for k, v in table.items() if isinstance(k, str)}
                unseen_transformer(made, is_named=True)
                made.facts.update({"is_model": True, "option": "n_layers"})
                return made
    return None


def _tables_in(table: Mapping[Any, Value], depth: int) -> list[Mapping[Any, Value]]:
    inner: list[Mapping[Any, Value]] = [
        each for each in table.values() if isinstance(each, dict)
    ]
    if depth >= _DEEPEST:
        return inner
    return inner + [t for each in inner for t in _tables_in(each, depth + 1)]


def _given(thing: Thing) -> Mapping[str, Value]:
    """What it was given by name, or in a table or an object of options."""
    found: dict[str, Value] = {}
    for options in thing.arguments:
        if isinstance(options, dict):
            found |= {
                key: value for key, value in options.items() if isinstance(key, str)
            }
        elif isinstance(options, Thing) and "is_model" not in options.facts:
            found |= {**options.keywords, **options.attributes}
    return found | thing.keywords


def _first(given: Mapping[str, Value], names: tuple[str, ...]) -> int:
    sizes = [whole(given.get(name)) for name in names]
    return next((size for size in sizes if size), 0)


def _sizes(
    given: Mapping[str, Value], width: int, layers: int, heads: int, has_decoder: bool
) -> Sizes:
    ratio = number(given.get("mlp_ratio")) or 4.0
    return Sizes(
        layers=layers,
        width=width,
        inner=_first(given, _INNER) or whole(ratio * width) or 4 * width,
        heads=heads,
        key_heads=heads,
        head_width=width // heads,
        vocabulary=_first(given, _VOCABULARY),
        positions=_first(given, _POSITIONS),
        decoder_layers=layers if has_decoder else 0,
        gated=False,
        tied=given.get("weight_tying") is True,
        patch=_first(given, ("patch_size",)),
        image=_first(given, ("image_size", "img_size")),
    )


def _count(sizes: Sizes) -> int:
    attention = 4 * sizes.width * sizes.width
    forward = 2 * sizes.width * sizes.inner
    blocks = sizes.layers * (attention + forward)
    decoder = sizes.decoder_layers * (2 * attention + forward)
    words = sizes.vocabulary * (1 if sizes.tied else 2)
    tables = (words + sizes.positions) * sizes.width
    patches = 3 * sizes.patch * sizes.patch * sizes.width
    return blocks + decoder + tables + patches


def _kind(sizes: Sizes, has_decoder: bool) -> str:
    if sizes.patch and sizes.image:
        return "vision"
    return "seq2seq" if has_decoder else "decoder"
