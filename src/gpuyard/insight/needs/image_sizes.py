"""How large the images are with which a program trains."""

# The values of a followed program can be anything.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from collections.abc import Sequence
from math import sqrt

from gpuyard.insight.needs.values import Thing, Value, number

SIZE_NAMES = (
    "image_size",
    "img_size",
    "resolution",
    "imgsz",
    "imagesize",
    "img_height",
    "image_height",
    "crop_size",
    "train_crop_size",
    "input_size",
)
# The transforms that say how large an image is in the end, the surest first.
_CROPS = ("RandomResizedCrop", "CenterCrop", "RandomCrop", "Resize")
_TRANSFORMS = ("torchvision.transforms", "albumentations")
_SMALLEST = 8
_LARGEST = 4096


def side_of(value: Value) -> int | None:
    """The side of a square with as many pixels as an image of this size: a side, or a
    height and a width.
    """
    sides = value[:2] if isinstance(value, list | tuple) else [value]
    numbers = [number(each) for each in sides]
    known = [each for each in numbers if each is not None and each > 0]
    if not known or len(known) < len(numbers):
        return None
    side = round(sqrt(known[0] * known[-1]))
    return side if _SMALLEST <= side <= _LARGEST else None


def image_side(things: Sequence[Thing]) -> int | None:
    """The side that a transform makes, or that a dataset of the program's own has."""
    for name in _CROPS:
        for thing in things:
            if thing.last_name != name or not thing.name.startswith(_TRANSFORMS):
                continue
            side = side_of(thing.argument(0, "size", "height", default=None))
            if side is not None:
                return side
    for thing in things:
        if thing.facts.get("is_own_data"):
            sides = [side_of(thing.attributes.get(name)) for name in SIZE_NAMES]
            return next(filter(None, sides), None)
    return None
