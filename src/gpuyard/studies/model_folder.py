"""Read a model's folder in Hugging Face's format, and check that it is complete."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from gpuyard.domain.errors import Fault, InvalidInputError, quoted
from gpuyard.studies.runtime.decoder_shape import (
    FAMILIES,
    HEAD_SIZES,
    TIED_BY_DEFAULT,
)

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
TOKENIZER = "tokenizer.json"
_READ_WHOLE = ("config.json", "generation_config.json", INDEX, TOKENIZER)
_FIELD = "model.path"
_SIZES = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
)


@dataclass(frozen=True, slots=True)
class ExpertSizes:
    """The experts of a model's layers, but for the first `dense_layers`.

    `intermediate` are the columns of one expert, `shared` those that all tokens pass.
    """

    count: int
    intermediate: int
    shared: int = 0
    dense_layers: int = 0


@dataclass(frozen=True, slots=True)
class LatentSizes:
    """Attention with one small vector per token for keys and values, of size `rank`.

    `query_rank` is that of queries, 0 for none. A key has `plain` channels of its head
    and `rotated` ones that all heads share. A value has `value` channels.
    """

    query_rank: int
    rank: int
    plain: int
    rotated: int
    value: int


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes that decide how a model can be split and what it weighs.

    `max_length` is tokens, None when unstated.
    """

    family: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool
    attention_bias: bool
    output_bias: bool
    mlp_bias: bool
    max_length: int | None = None
    experts: ExpertSizes | None = None
    latent: LatentSizes | None = None

    @property
    def layer_parameters(self) -> int:
        """The parameters of the largest layer: attention, MLP or experts, and norms."""
        dense = self.attention_parameters + self._mlp_parameters
        if self.experts is None:
            return dense
        return max(dense, self.attention_parameters + self._expert_parameters)

    @property
    def attention_parameters(self) -> int:
        """The parameters of a layer's attention, and of its norms."""
        norms = 2 * self.hidden
        if self.latent is not None:
            return self._latent_parameters(self.latent) + norms
        query = self.heads * self.head_dim
        key = self.kv_heads * self.head_dim
        if self.family == "qwen3":
            norms += 2 * self.head_dim
        matrices = self.hidden * (2 * query + 2 * key)
        biases = self.attention_bias * (query + 2 * key)
        return matrices + biases + self.output_bias * self.hidden + norms

    @property
    def _mlp_parameters(self) -> int:
        biases = self.mlp_bias * (2 * self.intermediate + self.hidden)
        return 3 * self.hidden * self.intermediate + biases

    @property
    def _expert_parameters(self) -> int:
        """The parameters of a layer's experts and of what chooses them."""
        assert self.experts is not None
        columns = self.experts.count * self.experts.intermediate + self.experts.shared
        router = self.experts.count * self.hidden
        if self.latent is not None:
            # Its router corrects the score of each expert.
            router += self.experts.count
        return 3 * self.hidden * columns + router

    def _latent_parameters(self, latent: LatentSizes) -> int:
        queries = self.heads * (latent.plain + latent.rotated)
        from_rank = self.hidden
        parameters = 0
        if latent.query_rank:
            from_rank = latent.query_rank
            parameters += self.hidden * latent.query_rank + latent.query_rank
        parameters += from_rank * queries
        parameters += self.hidden * (latent.rank + latent.rotated) + latent.rank
        parameters += latent.rank * self.heads * (latent.plain + latent.value)
        return parameters + self.heads * latent.value * self.hidden

    def cached_values(self, tp: int, *, is_latent: bool = False) -> int:
        """The numbers that a token leaves in the cache of a layer, on one of `tp` GPUs.

        An engine that caches the small vectors (`is_latent`) has them whole on each.
        """
        if self.latent is None:
            return 2 * -(-self.kv_heads // tp) * self.head_dim
        latent = self.latent
        if is_latent:
            return latent.rank + latent.rotated
        size = latent.plain + latent.rotated + latent.value
        return -(-self.heads // tp) * size

    @property
    def embedding_parameters(self) -> int:
        """The parameters of the embedding; an untied head has as many."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """All parameters."""
        embeddings = self.embedding_parameters * (1 if self.tied else 2)
        dense = self.layers
        if self.experts is not None:
            dense = min(self.experts.dense_layers, self.layers)
        layers = self.layers * self.attention_parameters + dense * self._mlp_parameters
        if self.experts is not None:
            layers += (self.layers - dense) * self._expert_parameters
        return layers + embeddings + self.hidden


def read_shape(folder: Path) -> ModelShape:
    """Read a model's sizes from its config.json.

    InvalidInputError when the file is missing or broken, or the model family is
    unknown.
    """
    config = _read_json(folder, "config.json")
    family = config.get("model_type")
    if family not in FAMILIES:
        fault = (
            f"{folder / 'config.json'} is of the family {quoted(family)}, which studies"
            " cannot split"
        )
        raise InvalidInputError.of(
            _FIELD, fault, f"choose a model of {', '.join(FAMILIES)}"
        )
    sizes = {name: _size(folder, config, name) for name in _SIZES}
    heads = sizes["num_attention_heads"]
    hidden = sizes["hidden_size"]
    biased = bool(config.get("attention_bias"))
    default_head = HEAD_SIZES.get(family) or max(hidden // heads, 1)
    tied = config.get("tie_word_embeddings", family in TIED_BY_DEFAULT)
    latent = _latent(folder, config) if family == "deepseek_v3" else None
    kv_heads = _size(folder, config, "num_key_value_heads", heads)
    return ModelShape(
        family=family,
        hidden=hidden,
        layers=sizes["num_hidden_layers"],
        heads=heads,
        # Each head has keys of its own, which come from the same vectors.
        kv_heads=heads if latent else kv_heads,
        head_dim=_size(folder, config, "head_dim", default_head),
        intermediate=sizes["intermediate_size"],
        vocabulary=sizes["vocab_size"],
        tied=bool(tied),
        attention_bias=biased or family == "qwen2",
        output_bias=biased and family != "qwen2",
        mlp_bias=bool(config.get("mlp_bias")),
        max_length=_size(folder, config, "max_position_embeddings", 0) or None,
        experts=_experts(folder, family, config),
        latent=latent,
    )


def _experts(folder: Path, family: str, config: dict[str, Any]) -> ExpertSizes | None:
    if family == "mixtral":
        return ExpertSizes(
            _size(folder, config, "num_local_experts"),
            _size(folder, config, "intermediate_size"),
        )
    if family != "deepseek_v3":
        return None
    intermediate = _size(folder, config, "moe_intermediate_size")
    return ExpertSizes(
        _size(folder, config, "n_routed_experts"),
        intermediate,
        intermediate * _size(folder, config, "n_shared_experts"),
        _size(folder, config, "first_k_dense_replace", least=0),
    )


def _latent(folder: Path, config: dict[str, Any]) -> LatentSizes:
    return LatentSizes(
        _size(folder, config, "q_lora_rank", 0),
        _size(folder, config, "kv_lora_rank"),
        _size(folder, config, "qk_nope_head_dim"),
        _size(folder, config, "qk_rope_head_dim"),
        _size(folder, config, "v_head_dim"),
    )


def _size(
    folder: Path,
    config: dict[str, Any],
    name: str,
    default: int | None = None,
    *,
    least: int = 1,
) -> int:
    """A whole number from `least` up; `default` where the config states none."""
    value = config.get(name)
    if value is None and default is not None:
        return default
    if type(value) is not int or value < least:
        fault = (
            f"{folder / 'config.json'} states {quoted(value)} as {name}"
            if name in config
            else f"states no {name}"
        )
        raise InvalidInputError.of(_FIELD, fault, "fetch the model's config.json again")
    return value


def read_family(folder: Path) -> str:
    """Read the family of a model, such as llama; InvalidInputError."""
    return str(_read_json(folder, "config.json").get("model_type") or "")


def _read_json(folder: Path, name: str) -> dict[str, Any]:
    try:
        document: Any = json.loads((folder / name).read_bytes())
    except FileNotFoundError:
        what = f"there is no folder {folder}"
        if folder.is_dir():
            what = f"{folder} has no {name}"
        remedy = (
            f"put the model's folder there, with {name} and its safetensors, or correct"
            " the path"
        )
        raise InvalidInputError.of(_FIELD, what, remedy) from None
    except (OSError, ValueError, RecursionError) as error:
        fault = (
            f"{folder / name} cannot be read:"
            f" {getattr(error, 'strerror', None) or error}"
        )
        raise InvalidInputError.of(_FIELD, fault, "fetch it again") from None
    if not isinstance(document, dict):
        raise InvalidInputError.of(
            _FIELD, f"{folder / name} holds no JSON object", "fetch it again"
        )
    return cast(dict[str, Any], document)


def fingerprint(folder: Path) -> str:
    """A digest that changes when somebody replaces files of a model; empty for none.

    Weights count by their names, sizes and times, because reading them takes long.
    """
    digest = hashlib.sha256()
    try:
        for path in sorted(folder.iterdir()):
            if path.suffix == ".safetensors":
                state = path.stat()
                mark = f"{path.name} {state.st_size} {state.st_mtime_ns}"
                digest.update(mark.encode(errors="surrogateescape"))
            elif path.name in _READ_WHOLE:
                digest.update(path.read_bytes())
    except OSError:
        return ""
    return digest.hexdigest()


def weight_faults(folder: Path) -> list[Fault]:
    """Describe faults of the weights: no index, a missing or a truncated file."""
    if not (folder / INDEX).exists():
        if not (folder / SINGLE).exists():
            remedy = "fetch the weights as safetensors; other forms are not read"
            return [Fault(_FIELD, f"{folder} has neither {INDEX} nor {SINGLE}", remedy)]
        shards = [SINGLE]
    else:
        try:
            shards = _indexed(folder)
        except InvalidInputError as error:
            return list(error.faults)
    missing = [name for name in shards if not (folder / name).is_file()]
    if missing:
        shown = ", ".join(missing[:3])
        if len(missing) > 3:
            shown += f" and {len(missing) - 3} more"
        return [
            Fault(
                _FIELD,
                f"{folder} lacks {shown}, which its index names",
                "fetch the missing files",
            )
        ]
    return [fault for name in shards for fault in _shard_faults(folder / name)]


def _indexed(folder: Path) -> list[str]:
    weights = _read_json(folder, INDEX).get("weight_map")
    if not isinstance(weights, dict) or not weights:
        raise InvalidInputError.of(
            _FIELD, f"{folder / INDEX} names no weights", "fetch it again"
        )
    return sorted({str(name) for name in cast(dict[str, object], weights).values()})


def _shard_faults(path: Path) -> list[Fault]:
    try:
        whole = _whole(path)
    except OSError as error:
        return [
            Fault(
                _FIELD,
                f"{path} cannot be read: {error.strerror}",
                "make it a file you may read",
            )
        ]
    if whole:
        return []
    fault = f"{path} is cut off or no safetensors file"
    return [Fault(_FIELD, fault, "fetch it again")]


def _whole(path: Path) -> bool:
    """Return whether a safetensors file is as long as its header says.

    Only the header is read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= size - 8:
            return False
        try:
            header = json.loads(file.read(length))
            ends = [
                int(entry["data_offsets"][1])
                for name, entry in header.items()
                if name != "__metadata__"
            ]
        except (ValueError, TypeError, AttributeError, LookupError):
            return False
    return size == 8 + length + max(ends, default=0)
