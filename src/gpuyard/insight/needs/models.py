"""Recognises the models of libraries: published ones by their names, others by their
configuration.
"""

# The values of a followed program can be anything.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import re
from collections.abc import Callable, Mapping
from typing import Any

from gpuyard.insight.needs.architectures import (
    architecture_of,
    sizes_of,
)
from gpuyard.insight.needs.layers import fill as fill_layer
from gpuyard.insight.needs.tables import (
    KnownModel,
    KnownVision,
    known_detector,
    known_diffusion,
    known_model,
    known_vision,
)
from gpuyard.insight.needs.values import UNKNOWN, Parameter, Thing, Value, whole

_NO_MODELS = re.compile(
    r"Config$|Tokenizer|Processor|FeatureExtractor|Scheduler$|Dataset|Callback"
    r"|Collator"
)
_TRANSFORMERS = ("transformers", "trl", "unsloth", "peft", "optimum", "ctransformers")
_SENTENCES = frozenset({"SentenceTransformer", "CrossEncoder"})
_SEGMENTATION = frozenset(
    {"Unet", "UnetPlusPlus", "FPN", "Linknet", "PSPNet", "PAN", "MAnet"}
    | {"DeepLabV3", "DeepLabV3Plus", "Segformer", "UPerNet"}
)
_DECODER_WEIGHTS = 3_000_000
_HIDDEN = (
    (16e6, 312),
    (50e6, 384),
    (300e6, 768),
    (500e6, 1024),
    (900e6, 1280),
    (2e9, 2048),
    (4e9, 2560),
    (9e9, 4096),
    (20e9, 5120),
    (1e15, 8192),
)


def recognise(thing: Thing) -> bool:
    """Give an object the weights of the model that it is; False if it is none that is
    known. The object's facts say what it is.
    """
    name = thing.name
    if _NO_MODELS.search(name.removesuffix(".from_pretrained").rpartition(".")[2]):
        return False
    found = any(recogniser(thing) for recogniser in _RECOGNISERS)
    if found:
        thing.facts["is_model"] = True
    return found


def recognise_config(thing: Thing) -> bool:
    """Give an object the attributes of the configuration of a model that it is."""
    name = thing.name.removesuffix(".from_pretrained")
    last = name.rpartition(".")[2]
    is_tokenizer = "Tokenizer" in last or "Processor" in last
    if not last.endswith("Config") and not is_tokenizer:
        return False
    thing.attributes.update(thing.keywords)
    first = thing.argument(0, "pretrained_model_name_or_path")
    published = known_model(first) if isinstance(first, str) else None
    if published is not None:
        thing.facts["published"] = published
        sizes = _attributes_of(published)
        thing.attributes.update(
            {k: v for k, v in sizes.items() if k not in thing.keywords}
        )
        if is_tokenizer:
            thing.facts["size"] = published.vocabulary or None
    architecture = architecture_of(last)
    if architecture and thing.name == name:
        sizes_found = sizes_of(architecture, thing.keywords)
        if sizes_found:
            thing.attributes.setdefault("hidden_size", sizes_found.width)
            thing.attributes.setdefault("vocab_size", sizes_found.vocabulary)
    return True


def _attributes_of(published: KnownModel) -> dict[str, Value]:
    width = hidden_of(published.parameters)
    return {
        "hidden_size": width,
        "d_model": width,
        "n_embd": width,
        "dim": width,
        "vocab_size": published.vocabulary or UNKNOWN,
        "n_positions": published.context,
        "max_position_embeddings": published.context,
    }


def hidden_of(parameters: int) -> int:
    """The usual width of a transformer with so many weights."""
    return next(width for most, width in _HIDDEN if parameters < most)


def set_published(thing: Thing, published: KnownModel) -> None:
    """Give an object the weights of a published model."""
    thing.attributes["_backbone"] = Parameter(published.parameters)
    thing.attributes["config"] = Thing(
        "transformers.Config", thing.place, attributes=_attributes_of(published)
    )
    thing.facts["published"] = published
    thing.facts["kind"] = published.kind
    thing.facts["model_name"] = published.name
    if not published.certain:
        thing.facts["by_name"] = True


def _pretrained(thing: Thing) -> bool:
    """`from_pretrained(NAME)` of Transformers and its kin."""
    if not thing.name.endswith((".from_pretrained", ".from_hub", ".load_from_hub")):
        return False
    if thing.name.startswith("diffusers"):
        return False
    name = thing.argument(
        0, "pretrained_model_name_or_path", "model_name", "model_name_or_path"
    )
    if not isinstance(name, str):
        config = thing.argument(-1, "config", default=None)
        if isinstance(config, Thing) and "published" in config.facts:
            set_published(thing, config.facts["published"])
            return True
        thing.facts["unknown_model"] = name
        return True
    published = known_model(name)
    if published is None and (vision := known_vision(name)):
        _set_vision(thing, vision.name, None)
        return True
    if published is None:
        thing.facts["unknown_model"] = name
        return True
    set_published(thing, published)
    return True


def _configured(thing: Thing) -> bool:
    """A class of Transformers that is given a configuration."""
    if not thing.name.startswith(_TRANSFORMERS):
        return False
    from_config = thing.name.endswith((".from_config", "._from_config"))
    config = thing.argument(0, "config", default=None)
    if not isinstance(config, Thing) or "Config" not in config.name:
        return False
    class_name = thing.name.split(".")[-2 if from_config else -1]
    if not class_name[:1].isupper() or class_name.endswith("Trainer"):
        return False
    config_name = config.name.removesuffix(".from_pretrained").rpartition(".")[2]
    published = config.facts.get("published")
    architecture = architecture_of(config_name) or architecture_of(class_name)
    if published is not None:
        set_published(thing, published)
        _resize_vocabulary(thing, published, config.keywords.get("vocab_size"))
        return True
    if architecture is None:
        thing.facts["unknown_model"] = config_name
        return True
    sizes = sizes_of(architecture, {**config.keywords, **_own(config)})
    if sizes is None:
        thing.facts["unknown_model"] = config_name
        return True
    thing.attributes["_backbone"] = Parameter(architecture.count(sizes))
    thing.attributes["config"] = config
    thing.facts["kind"] = architecture.kind
    thing.facts["sizes"] = sizes
    thing.facts["model_name"] = class_name
    return True


def _own(config: Thing) -> dict[str, Value]:
    """What the program has set on a configuration after it was made."""
    return {
        k: v for k, v in config.attributes.items() if k in config.facts.get("set", ())
    }


def _resize_vocabulary(thing: Thing, published: KnownModel, size: Value) -> None:
    wanted = whole(size)
    if wanted is None or not published.vocabulary:
        return
    width = hidden_of(published.parameters)
    change = (wanted - published.vocabulary) * width
    count = max(published.parameters + change, width)
    thing.attributes["_backbone"] = Parameter(count)


def _vision(thing: Thing) -> bool:
    """torchvision, timm, torch.hub and Keras Applications."""
    name = thing.name
    classes = thing.argument(-1, "num_classes", "classes", default=None)
    if name.endswith((".VisionTransformer", ".vision_transformer.VisionTransformer")):
        return _vision_transformer(thing)
    if name in ("timm.create_model", "timm.models.create_model"):
        model = thing.argument(0, "model_name")
    elif name.startswith("torchvision.models") and name.endswith(".get_model"):
        model = thing.argument(0, "name")
    elif name in ("torch.hub.load",):
        model = thing.argument(1, "model")
    elif name.startswith("haiku.nets.") and known_vision(thing.last_name):
        model = thing.last_name.lower()
    elif name.startswith(
        ("torchvision.models.", "timm.models.", "torchvision.prototype")
    ):
        model = thing.last_name
        if not model[:1].islower():
            return False
    else:
        return False
    if not isinstance(model, str):
        thing.facts["unknown_model"] = UNKNOWN
        return True
    if known_vision(model) is None:
        return _other_hub_model(thing, model)
    _set_vision(thing, model, classes)
    return True


def _vision_transformer(thing: Thing) -> bool:
    """timm's class, whose sizes a program can choose. Its costs are those of the usual
    model of the same width, by the number of layers.
    """
    width = whole(thing.argument(-1, "embed_dim", default=768))
    depth = whole(thing.argument(-1, "depth", default=12))
    patch = whole(thing.argument(-1, "patch_size", default=16))
    if not thing.name.startswith("timm") or not (width and depth and patch):
        return False
    like = known_vision("vit_base_patch16_224")
    assert like is not None
    head = (whole(thing.argument(-1, "num_classes", default=1000)) or 0) * width
    tokens = (16 / patch) ** 2
    share = width * depth / (768 * 12)
    found = KnownVision(
        name=f"ViT of {depth} layers of {width}",
        parameters=depth * (12 * width**2 + 13 * width) + 3 * patch**2 * width + head,
        head_inputs=0,
        gmacs=like.gmacs * tokens * share * width / 768,
        activations=like.activations * tokens * share,
    )
    thing.attributes["_backbone"] = Parameter(found.parameters)
    thing.attributes["embed_dim"] = width
    thing.facts.update({"kind": "vision", "model_name": found.name, "vision": found})
    return True


def _other_hub_model(thing: Thing, model: str) -> bool:
    count = known_detector(model)
    if count is None:
        thing.facts["unknown_model"] = model
    else:
        thing.attributes["_backbone"] = Parameter(count)
        thing.facts.update({"kind": "vision", "model_name": model})
    return True


def _set_vision(thing: Thing, name: str, classes: Value) -> None:
    found = known_vision(name)
    if found is None:
        return
    inputs = found.head_inputs
    head_weights = inputs * 1000 + 1000 if inputs else 0
    thing.attributes["_backbone"] = Parameter(found.parameters - head_weights)
    thing.facts.update({"kind": "vision", "model_name": found.name, "vision": found})
    if not inputs:
        return
    outputs = whole(classes)
    head = Thing("torch.nn.Linear", thing.place)
    if outputs != 0:
        fill_layer(head, "torch.nn.Linear", [inputs, outputs or 1000], {})
    head.facts["head_of"] = thing
    thing.attributes["num_features"] = inputs
    thing.attributes["_head"] = head


def _keras_application(thing: Thing) -> bool:
    if ".applications" not in thing.name:
        return False
    count = known_detector(thing.last_name)
    if count is None:
        return False
    has_top = thing.argument(-1, "include_top", default=True)
    if has_top is False:
        count = int(count * _WITHOUT_TOP.get(thing.last_name.lower(), 0.93))
    thing.attributes["_backbone"] = Parameter(count)
    thing.facts.update({"kind": "vision", "model_name": thing.last_name})
    thing.facts["keras_output"] = _KERAS_FEATURES.get(thing.last_name.lower(), 2048)
    return True


_WITHOUT_TOP = {
    "vgg16": 0.106,
    "vgg19": 0.139,
    "mobilenetv2": 0.64,
    "mobilenet": 0.76,
    "efficientnetb0": 0.76,
    "xception": 0.91,
    "resnet50": 0.92,
    "inceptionv3": 0.914,
    "densenet121": 0.87,
}
_KERAS_FEATURES = {
    "vgg16": 512,
    "vgg19": 512,
    "mobilenetv2": 1280,
    "mobilenet": 1024,
    "efficientnetb0": 1280,
    "densenet121": 1024,
}


def _kind_of(name: str) -> str:
    is_detector = name.lower().startswith(("yolo", "rtdetr"))
    return "detector" if is_detector and "-cls" not in name else "vision"


def set_named(thing: Thing, name: str) -> bool:
    """Give an object the weights of a known model of any library; False if no table
    has the name.
    """
    published = known_model(name)
    detector = known_detector(name)
    if known_vision(name) is not None:
        _set_vision(thing, name, None)
    elif published is not None:
        set_published(thing, published)
    elif detector is not None:
        thing.attributes["_backbone"] = Parameter(detector)
        thing.facts.update({"kind": _kind_of(name), "model_name": name})
    else:
        return False
    thing.facts["is_model"] = True
    return True


def _named_in_trainer(thing: Thing) -> bool:
    """A trainer of TRL that is given the name of its model."""
    model = thing.argument(0, "model")
    if not thing.name.startswith("trl.") or not isinstance(model, str):
        return False
    published = known_model(model) if thing.last_name.endswith("Trainer") else None
    if published is None:
        return False
    set_published(thing, published)
    return True


def _sentence_transformer(thing: Thing) -> bool:
    if thing.last_name not in _SENTENCES:
        return False
    name = thing.argument(0, "model_name_or_path", "model_name")
    published = known_model(name) if isinstance(name, str) else None
    if published is None:
        thing.facts["unknown_model"] = name
    else:
        set_published(thing, published)
    return True


def _diffusion(thing: Thing) -> bool:
    """Pipelines and their parts in Diffusers."""
    if not thing.name.startswith("diffusers"):
        return False
    if thing.name.endswith(".from_pretrained"):
        return _pretrained_diffusion(thing)
    maker = _DIFFUSERS.get(thing.last_name)
    if maker is None:
        return False
    count = maker(thing)
    if count is None:
        thing.facts["unknown_model"] = thing.last_name
    else:
        thing.attributes["_backbone"] = Parameter(count)
        thing.facts.update({"kind": "diffusion", "model_name": thing.last_name})
    return True


def _pretrained_diffusion(thing: Thing) -> bool:
    class_name = thing.name.split(".")[-2]
    name = thing.argument(0, "pretrained_model_name_or_path")
    parts = known_diffusion(name) if isinstance(name, str) else None
    if parts is None:
        thing.facts["unknown_model"] = name
        return True
    thing.facts.update({"kind": "diffusion", "model_name": str(name)})
    folder = thing.argument(-1, "subfolder", default=None)
    if isinstance(folder, str):
        thing.attributes["_backbone"] = Parameter(parts.get(folder, 0))
        return True
    if "Pipeline" in class_name and any(
        isinstance(each, Thing) for each in thing.keywords.values()
    ):
        return True  # of parts that are there already
    if "Pipeline" not in class_name:
        part = "vae" if "Autoencoder" in class_name else next(iter(parts))
        thing.attributes["_backbone"] = Parameter(parts[part])
        return True
    for part, count in parts.items():
        inner = Thing(f"diffusers.{part}", thing.place)
        inner.attributes["_backbone"] = Parameter(count)
        inner.facts.update({"is_model": True, "inside": True, "kind": "diffusion"})
        thing.attributes[part] = inner
    return True


def clip_part(thing: Thing) -> bool:
    """`CLIPTextModel.from_pretrained(DIFFUSION MODEL, subfolder=…)`."""
    folder = thing.argument(-1, "subfolder", default=None)
    name = thing.argument(0, "pretrained_model_name_or_path")
    if not isinstance(folder, str) or not isinstance(name, str):
        return False
    parts = known_diffusion(name)
    if parts is None or folder not in parts:
        return False
    thing.attributes["_backbone"] = Parameter(parts[folder])
    thing.facts.update({"kind": "diffusion", "model_name": f"{name} {folder}"})
    return True


def _unet_2d(thing: Thing) -> int | None:
    """The weights of Diffusers' `UNet2DModel`."""
    channels = thing.argument(-1, "block_out_channels", default=(224, 448, 672, 896))
    layers = whole(thing.argument(-1, "layers_per_block", default=2))
    if not isinstance(channels, tuple | list) or layers is None:
        return None
    widths = [whole(each) for each in channels]
    if not widths or None in widths:
        return None
    found = [each for each in widths if each is not None]
    time = found[0] * 4
    count = found[0] * time + time * time
    count += _down(found, layers, time) + _up(found, layers, time)
    middle = found[-1]
    count += 2 * _residual(middle, middle, time) + 4 * middle * middle
    attentions = sum(
        (layers if down else layers + 1) * 4 * found[at if down else -1 - at] ** 2
        for down, blocks in ((True, "down_block_types"), (False, "up_block_types"))
        for at, block in enumerate(_blocks(thing, blocks, len(found)))
        if "Attn" in block
    )
    return count + attentions


def _blocks(thing: Thing, name: str, count: int) -> list[str]:
    value = thing.argument(-1, name, default=())
    if not isinstance(value, tuple | list):
        return []
    default = ["AttnBlock"] * (count - 1)
    return [str(each) for each in value][:count] or default


def _residual(inputs: int, outputs: int, time: int) -> int:
    convolutions = 9 * inputs * outputs + 9 * outputs * outputs
    shortcut = inputs * outputs if inputs != outputs else 0
    return convolutions + shortcut + time * outputs


def _down(widths: list[int], layers: int, time: int) -> int:
    count = 0
    before = widths[0]
    for at, width in enumerate(widths):
        for layer in range(min(layers, 20)):
            count += _residual(width if layer else before, width, time)
        count += 9 * width * width if at < len(widths) - 1 else 0
        before = width
    return count


def _up(widths: list[int], layers: int, time: int) -> int:
    count = 0
    reverse = widths[::-1]
    before = reverse[0]
    for at, width in enumerate(reverse):
        skip_last = reverse[min(at + 1, len(reverse) - 1)]
        for layer in range(min(layers, 20) + 1):
            inputs = width if layer else before
            skip = skip_last if layer == layers else width
            count += _residual(inputs + skip, width, time)
        count += 9 * width * width if at < len(widths) - 1 else 0
        before = width
    return count


def _unet_condition(thing: Thing) -> int | None:
    return 859_520_964 if not thing.keywords else None


_DIFFUSERS: Mapping[str, Callable[[Thing], int | None]] = {
    "UNet2DModel": _unet_2d,
    "UNet2DConditionModel": _unet_condition,
}


def _detector(thing: Thing) -> bool:
    """Ultralytics' YOLO, OpenAI's CLIP and Whisper, segmentation_models_pytorch."""
    last = thing.last_name
    first = thing.argument(0, "model", "encoder_name", "name", "model_name")
    if thing.name.startswith("segmentation_models_pytorch") and last in _SEGMENTATION:
        encoder = thing.argument(0, "encoder_name", default="resnet34")
        vision = known_vision(encoder) if isinstance(encoder, str) else None
        if vision is None:
            thing.facts["unknown_model"] = encoder
            return True
        count = vision.parameters - vision.head_inputs * 1000 + _DECODER_WEIGHTS
        thing.attributes["_backbone"] = Parameter(count)
        thing.facts.update({"kind": "vision", "model_name": f"{last}({encoder})"})
        return True
    is_known_loader = last in ("YOLO", "RTDETR") or thing.name in (
        "clip.load",
        "open_clip.create_model_and_transforms",
        "open_clip.create_model",
        "whisper.load_model",
    )
    if not is_known_loader or not isinstance(first, str):
        return False
    prefix = "whisper-" if thing.name == "whisper.load_model" else ""
    published = known_model(f"{prefix}{first}") if prefix else None
    count = published.parameters if published else known_detector(first)
    if count is None:
        thing.facts["unknown_model"] = first
        return True
    thing.attributes["_backbone"] = Parameter(count)
    thing.facts.update({"kind": _kind_of(first), "model_name": first})
    return True


_RECOGNISERS: tuple[Callable[[Thing], Any], ...] = (
    clip_part,
    _pretrained,
    _configured,
    _vision,
    _keras_application,
    _sentence_transformer,
    _named_in_trainer,
    _diffusion,
    _detector,
)
