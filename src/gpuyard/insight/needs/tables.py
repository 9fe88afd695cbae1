"""Dated tables: the weights of known models, and the sizes of known data sets.

`known_models.json` and `known_data.json` lie beside this module.
"""

import json
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

_SIZE = re.compile(r"(?<![a-z\d.])(\d{1,4}(?:[._]\d{1,2})?)\s?(b|m)(?![a-z])")
_EXPERTS = re.compile(r"(\d{1,2})x(\d{1,3}(?:\.\d)?)b")

# The detectors of torchvision.
_RESIZE = ("fasterrcnn", "maskrcnn", "keypointrcnn", "retinanet", "fcos", "ssd")


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A published model: its weights; `kind` is `decoder`, `encoder`, `seq2seq`,
    `vision`, `multimodal` or `speech`. `certain` is false if its name only says how
    large it is.
    """

    name: str
    parameters: int
    kind: str
    vocabulary: int
    context: int
    certain: bool = True


@dataclass(frozen=True, slots=True)
class KnownVision:
    """A published model for images: its weights, those of inputs of its last layer,
    its multiply-adds in 10^9 and its activations in 10^6 for one image.
    """

    name: str
    parameters: int
    head_inputs: int
    gmacs: float
    activations: float

    @property
    def resizes(self) -> bool:
        """Whether it brings all images to a size of its own, for which this holds."""
        return self.name.startswith(_RESIZE)


@cache
def _table(name: str) -> dict[str, Any]:
    text = files("gpuyard.insight.needs").joinpath(name).read_text(encoding="utf-8")
    return json.loads(text)


@cache
def known_model(name: str) -> KnownModel | None:
    """The model of this name of Hugging Face's hub; None if nobody knows it."""
    short = name.lower().rstrip("/").rpartition("/")[2].removeprefix("unsloth-")
    table = _table("known_models.json")["hub"]
    whole_name = name.lower().replace("/", "-")
    for key in (short, whole_name):
        if key in table:
            return _model(key, table[key])
    inside = [key for key in table if _contains(short, key)]
    if inside:
        key = max(inside, key=len)
        found = _model(key, table[key])
        size = _size_in(short)
        same = size is None or abs(size - found.parameters) < 0.35 * size
        return found if same else _by_size(short, size, found)
    size = _size_in(short)
    return None if size is None else _by_size(short, size, None)


def _contains(name: str, key: str) -> bool:
    """Whether a name has the key as whole words."""
    at = name.find(key)
    if at < 0 or len(key) < 4:
        return False
    before = name[at - 1 : at]
    after = name[at + len(key) : at + len(key) + 1]
    return not before.isalnum() and not (after.isalnum() or after == ".")


def _model(key: str, row: list[Any]) -> KnownModel:
    (family, millions) = row
    family_row = _table("known_models.json")["families"][family]
    return KnownModel(
        key,
        int(millions * 1e6),
        family_row["kind"],
        family_row["vocabulary"],
        family_row["context"],
    )


def _by_size(name: str, size: int | None, like: KnownModel | None) -> KnownModel | None:
    if size is None:
        return like
    kind = like.kind if like else "decoder"
    vocabulary = like.vocabulary if like else 50_000
    context = like.context if like else 2048
    return KnownModel(name, size, kind, vocabulary, context, certain=False)


def _size_in(name: str) -> int | None:
    """The weights that a name such as `opt-1.3b` says."""
    experts = _EXPERTS.search(name)
    if experts:
        return int(float(experts[2]) * int(experts[1]) * 0.84 * 1e9)
    match = _SIZE.search(name)
    if match is None:
        return None
    number = float(match[1].replace("_", "."))
    return int(number * (1e9 if match[2] == "b" else 1e6))


@cache
def known_vision(name: str) -> KnownVision | None:
    """The model of torchvision or timm of this name."""
    table = _table("known_models.json")["vision"]
    key = name.lower().rpartition("/")[2].removeprefix("hf-hub:").partition(".")[0]
    for candidate in (key, key.replace("-", "_"), f"tf_{key}", key.replace("_", "")):
        if candidate in table:
            (parameters, head, gmacs, activations) = table[candidate]
            return KnownVision(candidate, parameters, head, gmacs, activations)
    return None


@cache
def known_detector(name: str) -> int | None:
    """The weights of a model of another library, such as `yolov8n`."""
    table = _table("known_models.json")["others"]
    key = name.lower().rpartition("/")[2]
    key = re.sub(r"(-seg|-cls|-pose|-obb)?\.(pt|yaml|yml|pth)$", "", key)
    millions = table.get(key)
    return None if millions is None else int(millions * 1e6)


@cache
def known_diffusion(name: str) -> dict[str, int] | None:
    """The weights of the parts of a diffusion model, by the names of its folders."""
    table = _table("known_models.json")["diffusion"]
    short = name.lower().rstrip("/").rpartition("/")[2]
    found = [key for key in table if key in short]
    if not found:
        return None
    row = table[max(found, key=len)]
    return {part: int(millions * 1e6) for part, millions in row.items()}


@dataclass(frozen=True, slots=True)
class KnownData:
    """A published data set: its training examples, or its training tokens; the sides
    of its images in pixels.
    """

    name: str
    examples: int | None
    tokens: int | None
    pixels: int | None
    channels: int


@cache
def known_data(name: str) -> KnownData | None:
    """The data set of this name."""
    table = _table("known_data.json")["data"]
    key = name.lower().rpartition("/")[2]
    for candidate in (name.lower(), key, key.replace("_", "").replace("-", "")):
        if candidate in table:
            row = table[candidate]
            return KnownData(
                candidate,
                row.get("examples"),
                row.get("tokens"),
                row.get("pixels"),
                row.get("channels", 3),
            )
    return None
