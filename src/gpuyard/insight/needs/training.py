"""How a program trains: its optimiser, its precision, LoRA, checkpointing, sharding."""

# The values of a followed program can be anything.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import re
from collections.abc import Mapping
from dataclasses import dataclass

from gpuyard.insight.needs.facts import Facts
from gpuyard.insight.needs.made_models import placed
from gpuyard.insight.needs.published_models import hidden_of
from gpuyard.insight.needs.values import (
    External,
    LibraryCall,
    Place,
    Thing,
    Value,
    number,
    whole,
)

# Bytes that an optimiser keeps for each weight that it trains.
_OPTIMISERS: Mapping[str, float] = {
    "adam": 8,
    "adamw": 8,
    "adamax": 8,
    "nadam": 8,
    "radam": 8,
    "lamb": 8,
    "fusedadam": 8,
    "fusedlamb": 8,
    "adadelta": 8,
    "sparseadam": 8,
    "bertadam": 8,
    "adabelief": 8,
    "sgd": 4,
    "rmsprop": 4,
    "adagrad": 4,
    "lion": 4,
    "muon": 4,
    "lars": 4,
    "novograd": 4,
    "adafactor": 0.1,
    "adam8bit": 2,
    "adamw8bit": 2,
    # Their pages leave the GPU when it is full, so they need no memory of it.
    "pagedadamw8bit": 0,
    "pagedadam8bit": 0,
    "pagedadamw32bit": 0,
    "pagedadamw": 0,
    "lion8bit": 1,
    "sgd8bit": 1,
    "deepspeedcpuadam": 0,
    "lbfgs": 80,
}
_TRAINERS = ("Trainer", "SFTTrainer", "DPOTrainer", "Seq2SeqTrainer", "GRPOTrainer")
# What loads a model, and what says how it is loaded.
_LOADERS = (".from_pretrained", ".from_config", ".OptionNamespace")
_HALF = ("float16", "half", "bfloat16", "fp16", "bf16", "16", "mixed_float16")
_MIXED = re.compile(r"-mixed$|^amp(_|$)")
_TRAINING_METHODS = (
    "train",
    "fit",
    "learn",
    "create_optimizer",
    "create_optimizer_v2",
    "fit_one_cycle",
    "fine_tune",
)
_DEFAULTS = ("set_default_dtype", "set_default_tensor_type", "set_floatx")
_CHECKPOINTING = (
    "gradient_checkpointing",
    "use_gradient_checkpointing",
    "enable_activation_checkpointing",
)
_MOST_STAGES = 3
_LORA_TARGETS = 2
_ALL_TARGETS = 7


@dataclass(frozen=True, slots=True)
class Optimiser:
    """An optimiser: the bytes that it keeps for each weight."""

    name: str
    bytes_per_weight: float
    place: Place | None
    assumed: bool = False


@dataclass(frozen=True, slots=True)
class Precision:
    """How numbers are kept: bytes of a weight, of a gradient and of an activation.

    `mixed`: weights stay in fp32 and half-precision copies are added.
    """

    name: str
    weight_bytes: float
    activation_bytes: float
    place: Place | None = None
    mixed: bool = False


@dataclass(frozen=True, slots=True)
class Sharding:
    """What several GPUs share out: `stage` as in ZeRO, 3 for FSDP. `splits_weights`:
    each GPU computes with its own part; `in_one` process, if that is so only there.
    """

    stage: int
    name: str
    place: Place | None = None
    splits_weights: bool = False
    in_one: bool = False


@dataclass(frozen=True, slots=True)
class Training:
    """How a program trains."""

    optimiser: Optimiser | None
    precision: Precision
    lora: "Lora | None"
    checkpointing: Place | None
    sharding: Sharding | None

    @property
    def keeps_full_copy(self) -> bool:
        """Whether a copy of half-precision weights in fp32 is trained, as ZeRO does."""
        return self.sharding is not None and self.sharding.name.startswith("ZeRO")


@dataclass(frozen=True, slots=True)
class Lora:
    """Low-rank adapters of this rank on so many matrices of a layer."""

    rank: int
    targets: int
    place: Place | None

    def weights(self, parameters: int) -> int:
        """The weights of the adapters of a model."""
        width = hidden_of(parameters)
        layers = max(parameters / (12 * width * width), 1)
        each = 2.0 if self.targets <= 4 else 3.3
        return int(layers * self.targets * each * self.rank * width)


def training_of(facts: Facts) -> Training:
    """Read how the program trains."""
    return Training(
        optimiser=_optimiser(facts),
        precision=_precision(facts),
        lora=_lora(facts),
        checkpointing=_checkpointing(facts),
        sharding=_sharding(facts),
    )


def _optimiser(facts: Facts) -> Optimiser | None:
    for call in facts.calls:
        thing = call.thing
        found = _of_name(thing.last_name)
        is_optimiser = "optim" in thing.name.lower() or bool(thing.arguments)
        if "left_out" in thing.facts or "layer" in thing.facts:
            continue
        if found is not None and is_optimiser:
            if thing.last_name.lower() == "sgd" and not _has_momentum(thing):
                found = 0
            return Optimiser(thing.last_name, found, placed(thing))
    return _named_optimiser(facts) or _default_optimiser(facts)


def _of_name(name: str) -> float | None:
    key = name.lower().replace("_", "").removesuffix("bnb").removesuffix("torch")
    key = key.removesuffix("fused").removesuffix("torchfused").removesuffix("hf")
    if "8bit" in key and key not in _OPTIMISERS:
        return 2
    return _OPTIMISERS.get(key)


def _has_momentum(thing: Thing) -> bool:
    position = 1 if thing.name.startswith("optax") else 2
    momentum = number(thing.argument(position, "momentum", default=0))
    return momentum is None or momentum > 0


def _named_optimiser(facts: Facts) -> Optimiser | None:
    """An optimiser that is named by a text."""
    for call in facts.calls:
        thing = call.thing
        component = thing.keywords.get("optimizer._component_")
        if isinstance(component, str):
            name = component.rpartition(".")[2]
            size = _of_name(name)
            return Optimiser(name, 8 if size is None else size, placed(thing))
        config = thing.keywords.get("config")
        inner = config.get("optimizer") if isinstance(config, dict) else None
        kind = inner.get("type") if isinstance(inner, dict) else None
        if isinstance(kind, str) and _of_name(kind) is not None:
            return Optimiser(kind, _of_name(kind) or 0, placed(thing))
        for keyword in ("optim", "optimizer", "opt"):
            name = thing.keywords.get(keyword)
            found = _of_name(name) if isinstance(name, str) else None
            if found is not None:
                return Optimiser(str(name), found, placed(thing))
    return None


def _default_optimiser(facts: Facts) -> Optimiser | None:
    for thing in facts.named(*_TRAINERS):
        if thing.name.startswith(("transformers", "trl")):
            return Optimiser("AdamW", 8, placed(thing))
    name = facts.settings.get("optimizer", facts.settings.get("opt"))
    found = _of_name(name) if isinstance(name, str) else None
    if found is not None:
        return Optimiser(str(name), found, None)
    for model in facts.models:
        if "option" in model.thing.facts and facts.trains:
            return Optimiser("AdamW", 8, None, assumed=True)
    for thing in facts.named(*_TRAINING_METHODS):
        return Optimiser("AdamW", 8, placed(thing), assumed=True)
    return Optimiser("AdamW", 8, None, assumed=True) if facts.takes_gradients else None


def _precision(facts: Facts) -> Precision:
    quantised = _quantised(facts)
    if quantised is not None:
        return quantised
    for call in facts.calls:
        found = _double_of(call) or _precision_of(call.thing)
        if found is not None:
            return found
    for thing in facts.named("FileConfig"):
        if _is_half(thing.keywords.get("dtype")):
            return Precision(_name_of(thing.keywords["dtype"]), 2, 2, placed(thing))
    return Precision("fp32", 4, 4)


def _quantised(facts: Facts) -> Precision | None:
    for call in facts.calls:
        keywords = call.thing.keywords
        if keywords.get("load_in_4bit") is True:
            return Precision("4-bit", 0.56, 2, placed(call.thing))
        if keywords.get("load_in_8bit") is True:
            return Precision("8-bit", 1.06, 2, placed(call.thing))
    for model in facts.models:
        asked = (model.thing.facts.get("adapter"), facts.settings.get("adapter"))
        if "qlora" in asked:
            return Precision("4-bit", 0.56, 2, model.place)
    return None


def _double_of(call: LibraryCall) -> Precision | None:
    """What makes numbers of a model, or all of them, ones of 8 bytes."""
    thing = call.thing
    receiver = call.receiver
    keywords = thing.keywords
    kinds = [keywords.get(name) for name in ("dtype", "torch_dtype", "param_dtype")]
    is_made = thing.facts.get("is_model") or thing.name.endswith(_LOADERS)
    found = bool(is_made) and any(map(_is_double, kinds))
    facts = receiver.facts if isinstance(receiver, Thing) else {}
    if facts.get("is_model") or "layer" in facts:
        found = found or thing.last_name == "double"
        is_cast = thing.last_name in ("to", "type")
        found = found or (is_cast and any(map(_is_double, [*thing.arguments, *kinds])))
    if thing.last_name in _DEFAULTS:
        found = found or _is_double(thing.argument(0, "d", "t", "value"))
    if thing.last_name in ("Trainer", "Fabric"):
        found = found or str(keywords.get("precision")) in ("64", "64-true")
    return Precision("fp64", 8, 8, placed(thing)) if found else None


def _is_double(value: Value) -> bool:
    text = value.name if isinstance(value, External) else value
    last = text.rpartition(".")[2] if isinstance(text, str) else ""
    return last in ("float64", "double", "DoubleTensor")


def _precision_of(thing: Thing) -> Precision | None:
    keywords = thing.keywords
    loads = keywords.get("torch_dtype", keywords.get("dtype"))
    loads = keywords.get("param_dtype", loads)
    if thing.name.endswith(_LOADERS) and _is_half(loads):
        return Precision(_name_of(loads), 2, 2, placed(thing))
    last = thing.last_name
    if thing.name == "vllm.LLM" and not _is_full(loads) and loads != "float32":
        return Precision("half", 2, 2, placed(thing))
    if last == "autocast" and keywords.get("enabled", True) is not False:
        dtype = keywords.get("dtype", thing.argument(1, default=None))
        if not _is_full(dtype) and not _is_disabled(thing):
            return _mixed(_name_of(dtype), thing)
    if last in ("half", "bfloat16") and thing.name.startswith(
        ("torch", "transformers")
    ):
        return Precision("fp16" if last == "half" else "bf16", 2, 2, placed(thing))
    if last == "to" and any(
        _is_half(a) for a in (*thing.arguments, keywords.get("dtype"))
    ):
        is_model = "Tensor" not in thing.name
        return Precision("half", 2, 2, placed(thing)) if is_model else None
    config = keywords.get("config")
    given = {**keywords, **config} if isinstance(config, dict) else keywords
    for name in ("fp16", "bf16"):
        value = given.get(name)
        if value is True or (isinstance(value, dict) and value.get("enabled") is True):
            return _mixed(name, thing)
    for name in ("mixed_precision", "precision", "policy"):
        text = str(keywords.get(name))
        if _is_half(keywords.get(name)) or _MIXED.search(text):
            return _mixed(_name_of(keywords[name]), thing)
    if last in ("set_default_tensor_type", "set_default_dtype"):
        first = thing.argument(0)
        name = first.name if isinstance(first, External) else str(first)
        if _is_half(first) or name.endswith(("HalfTensor", "BFloat16Tensor")):
            return Precision("half", 2, 2, placed(thing))
    if last in ("set_global_policy", "Policy") and _is_half(thing.argument(0)):
        return _mixed("fp16", thing)
    return None


def _mixed(name: str, thing: Thing) -> Precision:
    return Precision(f"{name} mixed", 4, 2, placed(thing), mixed=True)


def _is_disabled(thing: Thing) -> bool:
    return False in thing.arguments


def _is_half(value: Value) -> bool:
    text = value.name if isinstance(value, External) else value
    if text == 16:
        return True
    if not isinstance(text, str):
        return False
    return text.rpartition(".")[2].removesuffix("-mixed").removesuffix("-true") in _HALF


def _is_full(value: Value) -> bool:
    return isinstance(value, External) and value.name.endswith("float32")


def _name_of(value: Value) -> str:
    text = value.name if isinstance(value, External) else str(value)
    return "bf16" if "bf" in text else "fp16"


def _lora(facts: Facts) -> Lora | None:
    for thing in facts.named("LoraConfig", "get_peft_model", "AdaLoraConfig"):
        is_unsloth = "r" in thing.keywords or thing.last_name == "LoraConfig"
        if not is_unsloth:
            continue
        rank = whole(thing.argument(-1, "r", default=8)) or 8
        targets = thing.argument(-1, "target_modules", default=None)
        count = len(targets) if isinstance(targets, list | tuple) else _LORA_TARGETS
        if targets == "all-linear":
            count = _ALL_TARGETS
        return Lora(rank, count, placed(thing))
    return _named_lora(facts)


def _named_lora(facts: Facts) -> Lora | None:
    """Adapters that options or a configuration file ask for."""
    settings = facts.settings
    named = [model.thing.facts.get("adapter") for model in facts.models]
    asked = (*named, settings.get("adapter"), settings.get("finetuning_type"))
    is_asked = any(each in ("lora", "qlora") for each in asked)
    if not is_asked and settings.get("use_peft") is not True:
        return None
    sizes = [settings.get(name) for name in ("lora_rank", "lora_r")]
    rank = next(filter(None, map(whole, sizes)), 8)
    return Lora(rank, _LORA_TARGETS, facts.models[0].place if facts.models else None)


def _checkpointing(facts: Facts) -> Place | None:
    for call in facts.calls:
        thing = call.thing
        name = thing.last_name
        if name in ("gradient_checkpointing_enable", "enable_gradient_checkpointing"):
            return placed(thing)
        if thing.name.startswith("torch.utils.checkpoint"):
            return placed(thing)
        for keyword in _CHECKPOINTING:
            if thing.keywords.get(keyword) in (True, "unsloth"):
                return placed(thing)
    return None


def _sharding(facts: Facts) -> Sharding | None:
    for call in facts.calls:
        thing = call.thing
        if thing.name == "vllm.LLM" and _split_by_vllm(thing):
            return Sharding(3, "vLLM", placed(thing), splits_weights=True)
        if thing.last_name in ("FSDP", "FullyShardedDataParallel", "fully_shard"):
            return Sharding(3, "FSDP", placed(thing))
        strategy = thing.keywords.get("strategy", thing.keywords.get("fsdp"))
        if isinstance(strategy, dict) or _has_fsdp_table(thing):
            return Sharding(3, "FSDP", placed(thing))
        if (isinstance(strategy, str) and "shard" in strategy) or strategy == "fsdp":
            return Sharding(3, "FSDP", placed(thing))
        if isinstance(strategy, str) and strategy.startswith("deepspeed"):
            stage = 3 if "3" in strategy else 2
            return Sharding(stage, f"ZeRO {stage}", placed(thing))
        config = thing.keywords.get("deepspeed", thing.keywords.get("config"))
        if isinstance(config, Thing):
            config = config.keywords
        stage = _zero_stage(config)
        if stage:
            return Sharding(stage, f"ZeRO {stage}", placed(thing))
    stage = whole(facts.settings.get("zero_stage"))
    if stage and stage <= _MOST_STAGES:
        return Sharding(stage, f"ZeRO {stage}")
    return _mapped(facts)


def _split_by_vllm(thing: Thing) -> bool:
    names = ("tensor_parallel_size", "pipeline_parallel_size")
    return any(thing.keywords.get(name, 1) != 1 for name in names)


def _mapped(facts: Facts) -> Sharding | None:
    """`device_map="auto"`: one process spreads its model over the GPUs that it sees."""
    for call in facts.calls:
        kind = call.thing.keywords.get("device_map")
        if isinstance(kind, str) and kind.startswith(("auto", "balanced")):
            place = placed(call.thing)
            return Sharding(3, "device_map", place, splits_weights=True, in_one=True)
    return None


def _has_fsdp_table(thing: Thing) -> bool:
    is_file = thing.last_name == "FileConfig"
    return is_file and isinstance(thing.keywords.get("fsdp_config"), dict)


def _zero_stage(config: Value) -> int:
    if not isinstance(config, dict):
        return 0
    zero = config.get("zero_optimization")
    return whole(zero.get("stage")) or 0 if isinstance(zero, dict) else 0
