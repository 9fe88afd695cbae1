"""Models of Diffusers."""

# The values of a followed program can be anything.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from collections.abc import Callable, Mapping

from gpuyard.insight.needs.tables import known_diffusion
from gpuyard.insight.needs.values import Parameter, Thing, whole


def diffusion(thing: Thing) -> bool:
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
    if "Pipeline" not in class_name:
        part = "vae" if "Autoencoder" in class_name else next(iter(parts))
        thing.attributes["_backbone"] = Parameter(parts[part])
        return True
    for part, count in parts.items():
        if thing.keywords.get(part) is not None:
            continue  # the program made it before
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
