"""The catalogue of container images, and the choice of one for a program. Rows are
dated data; a file may override them.

Tags are pinned, so that a job of today finds the same frameworks next year.
`deploy/images/build` builds gpuyard's own images with these tags.
"""

import datetime as dt
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from gpuyard.domain.errors import InvalidInputError, quoted
from gpuyard.domain.strict_model import StrictModel
from gpuyard.domain.validation import parse_model

OURS = "gpuyard/ml-"  # prefix of the images that this repository builds
PYTHON = "python"


def _pinned(tag: str) -> str:
    if not any(character.isdigit() for character in tag):
        raise ValueError(
            f"{quoted(tag)} moves on to another image some day; write a tag with a"
            " version, or a digest"
        )
    return tag


# The letters are written out: with those of all languages, as in `\w`, these patterns
# would take 17 MB.
Name = Annotated[
    str,
    Field(
        max_length=255,
        pattern=r"^([A-Za-z0-9_.-]+(:[0-9]+)?/)?[a-z0-9]+([._/-]+[a-z0-9]+)*$",
    ),
]
Tag = Annotated[
    str,
    Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}(@sha256:[0-9a-f]{64})?$"),
    AfterValidator(_pinned),
]
Version = Annotated[str, Field(pattern=r"^[0-9]+(\.[A-Za-z0-9_]+)*$")]


class Image(StrictModel):
    """A container image. `framework` is the import name of its main framework
    (`python`: none), and `version` is that framework's; `python` and `cuda` are the
    versions inside. `source` tells where the row comes from, `date` when it was
    checked.
    """

    name: Name
    tag: Tag
    framework: str = Field(pattern=r"^[a-z_][a-z0-9_]*$")
    version: Version
    gpu: bool = False
    python: Version
    cuda: Version | None = None
    source: str = ""
    date: dt.date

    @model_validator(mode="after")
    def _gpu_has_cuda(self) -> "Image":
        if self.cuda is not None and not self.gpu:
            raise ValueError(
                "@cuda@is given for an image without GPU; leave it out, or say gpu ="
                " true"
            )
        return self

    @property
    def reference(self) -> str:
        """What `docker pull` takes."""
        return f"{self.name}:{self.tag}"


# Since 2.10, PyTorch's own images have the Python of Ubuntu 24.04. CUDA 12.8 supports
# GPUs from Turing (T4) to Blackwell.
IMAGES = (
    Image(
        name=f"{OURS}pytorch-gpu",
        tag="2.11.0-cuda12.8-r1",
        framework="torch",
        version="2.11.0",
        gpu=True,
        python="3.12",
        cuda="12.8",
        source="pytorch/pytorch:2.11.0-cuda12.8-cudnn9-runtime",
        date=dt.date(2026, 11, 23),
    ),
    Image(
        name=f"{OURS}tensorflow-gpu",
        tag="2.21.0-cuda12.9-r1",
        framework="tensorflow",
        version="2.21.0",
        gpu=True,
        python="3.11",
        cuda="12.9",
        source="tensorflow[and-cuda] on python:3.11.15-slim-bookworm",
        date=dt.date(2026, 11, 23),
    ),
    Image(
        name="python",
        tag="3.11.15-slim-bookworm",
        framework=PYTHON,
        version="3.11.15",
        python="3.11",
        source="Docker's official image",
        date=dt.date(2026, 11, 23),
    ),
)

# Modules that need a framework, by import name. The first framework found counts.
FRAMEWORKS: Mapping[str, frozenset[str]] = {
    "torch": frozenset(
        {
            "torch",
            "torchvision",
            "torchaudio",
            "torchtext",
            "torchdata",
            "torchmetrics",
            "torchtune",
            "torch_geometric",
            "accelerate",
            "bitsandbytes",
            "deepspeed",
            "diffusers",
            "fairscale",
            "fastai",
            "flash_attn",
            "ignite",
            "lightning",
            "lightning_fabric",
            "monai",
            "open_clip",
            "peft",
            "pytorch_lightning",
            "sentence_transformers",
            "sglang",
            "timm",
            "transformers",
            "triton",
            "trl",
            "ultralytics",
            "unsloth",
            "vllm",
            "xformers",
        }
    ),
    "tensorflow": frozenset(
        {
            "tensorflow",
            "tensorflow_datasets",
            "tensorflow_hub",
            "tensorflow_probability",
            "tensorflow_text",
            "keras",
            "keras_cv",
            "keras_hub",
            "keras_nlp",
            "keras_tuner",
            "tf_agents",
            "tf_keras",
        }
    ),
    "jax": frozenset(
        {
            "jax",
            "jaxlib",
            "brax",
            "chex",
            "distrax",
            "equinox",
            "flax",
            "haiku",
            "numpyro",
            "optax",
            "orbax",
        }
    ),
}
_TITLES = {"torch": "PyTorch", "tensorflow": "TensorFlow", "jax": "JAX"}


@dataclass(frozen=True, slots=True)
class ImageChoice:
    """An image, and a sentence that says why it was chosen."""

    image: Image
    why: str


def choose_image(
    imports: frozenset[str], gpu: bool, catalogue: Iterable[Image] = IMAGES
) -> ImageChoice:
    """The image for a program that imports `imports` (top-level names), with or without
    a GPU.

    The first row with the program's framework that fits `gpu` is chosen; without one,
    plain Python. `catalogue` must have that, as every result of `read_catalogue` has.
    """
    rows = tuple(catalogue)
    found: dict[str, list[str]] = {}
    for name, known in FRAMEWORKS.items():
        if imports & known:
            found[name] = sorted(imports & known)
    framework = next(iter(found), PYTHON)
    image = None
    for row in rows:
        if row.framework == framework and row.gpu == gpu:
            image = row
            break
    plain = next(row for row in rows if row.framework == PYTHON)
    if framework == PYTHON:
        why = "It imports no framework that this catalogue knows."
        return ImageChoice(image or plain, why)
    what = f"It imports {_spoken(framework, found[framework])}"
    if image is None:
        return ImageChoice(
            plain,
            f"{what}, and the catalogue has no image of it {_with(gpu)}."
            f" {_remedy(framework, gpu)}",
        )
    why = f"{what} and runs {_with(gpu)}."
    others = [
        _spoken(name, names) for name, names in found.items() if name != framework
    ]
    if others:
        also = " and ".join(others)
        why += f" It imports {also}, too, which this image may not have."
    return ImageChoice(image, why)


def _spoken(framework: str, names: list[str]) -> str:
    title = _TITLES[framework]
    if framework in names:
        return title
    return f"{', '.join(names)} ({title})"


def _with(gpu: bool) -> str:
    return "with a GPU" if gpu else "without a GPU"


def _remedy(framework: str, gpu: bool) -> str:
    if framework == "jax" and gpu:
        return (
            "JAX brings CUDA along as wheels: have jax[cuda12] installed, or name an"
            " image."
        )
    return "Have it installed when the program starts, or name an image."


class _CatalogueFile(StrictModel):
    images: tuple[Image, ...]


def read_catalogue(text: str) -> tuple[Image, ...]:
    """The rows of a TOML file of `[[images]]`, then those built-in rows whose names it
    does not have.

    InvalidInputError names the row, counted from 0, and the field: `images.1.tag`.
    """
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidInputError.of(
            "images", f"is not valid TOML: {error}", "correct the file"
        ) from None
    rows = parse_model(_CatalogueFile, data).images
    named = {row.name for row in rows}
    if PYTHON in named and all(row.framework != PYTHON for row in rows):
        raise InvalidInputError.of(
            "images", "leave no image of plain Python", 'give one framework = "python"'
        )
    return (*rows, *(row for row in IMAGES if row.name not in named))
