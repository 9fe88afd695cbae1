"""Models for images: of torchvision, timm, Keras and Ultralytics, and CLIP."""

# The values of a followed program can be anything.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from gpuyard.insight.needs.layers import fill as fill_layer
from gpuyard.insight.needs.published_models import set_published
from gpuyard.insight.needs.tables import (
    KnownVision,
    known_detector,
    known_model,
    known_vision,
)
from gpuyard.insight.needs.values import (
    UNKNOWN,
    External,
    Parameter,
    Thing,
    Value,
    whole,
)

_SEGMENTATION = frozenset(
    {"Unet", "UnetPlusPlus", "FPN", "Linknet", "PSPNet", "PAN", "MAnet"}
    | {"DeepLabV3", "DeepLabV3Plus", "Segformer", "UPerNet"}
)
_LEARNERS = frozenset({"vision_learner", "cnn_learner", "unet_learner"})
# Modules of libraries of models that have none.
_NO_MODELS = frozenset({"hub", "_hub", "helpers", "layers", "registry", "utils"})
_DECODER_WEIGHTS = 3_000_000


def vision_model(thing: Thing) -> bool:
    """torchvision, timm, torch.hub and Haiku."""
    name = thing.name
    classes = thing.argument(-1, "num_classes", "classes", default=None)
    if name.endswith(".VisionTransformer"):
        return _vision_transformer(thing)
    if name in ("timm.create_model", "timm.models.create_model"):
        model = thing.argument(0, "model_name")
    elif name.startswith("torchvision.models") and name.endswith(".get_model"):
        model = thing.argument(0, "name")
    elif name in ("torch.hub.load",):
        model = thing.argument(1, "model")
    elif name.startswith("haiku.nets.") and known_vision(thing.last_name):
        model = thing.last_name.lower()
    elif name.startswith("fastai") and thing.last_name in _LEARNERS:
        arch = thing.argument(1, "arch")
        model = arch.name.rpartition(".")[2] if isinstance(arch, External) else arch
        thing.facts["learner"] = True
    elif name.startswith(
        ("torchvision.models.", "timm.models.", "torchvision.prototype")
    ):
        model = thing.last_name
        if not model[:1].islower() or name.split(".")[-2] in _NO_MODELS:
            return False
    else:
        return False
    if not isinstance(model, str):
        thing.facts["unknown_model"] = UNKNOWN
        return True
    if known_vision(model) is not None:
        set_vision(thing, model, classes)
    elif not set_counted(thing, model):
        thing.facts["unknown_model"] = model
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


def set_counted(thing: Thing, name: str) -> bool:
    """Give an object the weights of a model of which only their number is known, such
    as a detector; False if it is not.
    """
    count = known_detector(name)
    if count is None:
        return False
    thing.attributes["_backbone"] = Parameter(count)
    thing.facts.update({"kind": _kind_of(name), "model_name": name})
    return True


def _kind_of(name: str) -> str:
    is_detector = name.lower().startswith(("yolo", "rtdetr"))
    return "detector" if is_detector and "-cls" not in name else "vision"


def set_vision(thing: Thing, name: str, classes: Value) -> None:
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


def keras_application(thing: Thing) -> bool:
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


def loaded_model(thing: Thing) -> bool:
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
    is_whisper = thing.name == "whisper.load_model"
    published = known_model(f"whisper-{first}") if is_whisper else None
    if published is not None:
        set_published(thing, published)
    elif not set_counted(thing, first):
        thing.facts["unknown_model"] = first
    return True
