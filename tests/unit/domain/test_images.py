"""The catalogue of images, and the choice from it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.images import (
    FRAMEWORKS,
    IMAGES,
    Image,
    choose_image,
    read_catalogue,
)

PYTORCH, TENSORFLOW, PYTHON = IMAGES
ROW = """
[[images]]
name = "registry.example.org:5000/team/torch"
tag = "2.12.0"
framework = "torch"
version = "2.12.0"
gpu = true
python = "3.12"
cuda = "13.0"
date = 2026-11-01
"""


@pytest.mark.parametrize(
    ("imports", "gpu", "image", "reason"),
    [
        ({"torch"}, True, PYTORCH, "PyTorch"),
        ({"os", "transformers"}, True, PYTORCH, "transformers (PyTorch)"),
        ({"vllm", "accelerate"}, True, PYTORCH, "accelerate, vllm (PyTorch)"),
        ({"tensorflow"}, True, TENSORFLOW, "TensorFlow"),
        ({"keras"}, True, TENSORFLOW, "keras (TensorFlow)"),
        ({"torch", "keras"}, True, PYTORCH, "keras (TensorFlow), too"),
        ({"tensorflow", "jax"}, True, TENSORFLOW, "JAX, too"),
        ({"jax"}, True, PYTHON, "jax[cuda12]"),
        ({"jax"}, False, PYTHON, "name an image"),
        ({"torch"}, False, PYTHON, "no image of it without a GPU"),
        ({"os"}, True, PYTHON, "no framework"),
        (set(), False, PYTHON, "no framework"),
        ({"torchlight"}, True, PYTHON, "no framework"),
    ],
)
def test_the_choice_and_its_reason(
    imports: set[str], gpu: bool, image: Image, reason: str
) -> None:
    choice = choose_image(frozenset(imports), gpu)
    assert choice.image == image
    assert reason in choice.why


@given(
    st.frozensets(
        st.sampled_from([name for names in FRAMEWORKS.values() for name in names])
        | st.text()
    ),
    st.booleans(),
)
def test_there_is_always_one_that_fits(imports: frozenset[str], gpu: bool) -> None:
    choice = choose_image(imports, gpu)
    assert gpu or not choice.image.gpu
    assert choice.why.endswith(".")


def test_every_row_is_pinned_dated_and_sourced() -> None:
    for image in IMAGES:
        assert image.version in image.tag
        assert image.source
        assert image.date.year >= 2026
        assert image.gpu == (image.cuda is not None)
    assert PYTHON.reference == "python:3.11.15-slim-bookworm"


def test_a_file_comes_before_what_is_built_in() -> None:
    catalogue = read_catalogue(ROW)
    assert choose_image(frozenset({"torch"}), True, catalogue).image.tag == "2.12.0"
    assert choose_image(frozenset({"keras"}), True, catalogue).image == TENSORFLOW


def test_a_file_replaces_the_row_of_the_same_name() -> None:
    catalogue = read_catalogue(
        ROW.replace("registry.example.org:5000/team/torch", PYTORCH.name)
    )
    assert [image.name for image in catalogue] == [
        PYTORCH.name,
        TENSORFLOW.name,
        PYTHON.name,
    ]


def test_a_framework_of_ones_own_image_is_chosen() -> None:
    catalogue = read_catalogue(ROW.replace('"torch"', '"jax"'))
    assert choose_image(frozenset({"flax"}), True, catalogue).image.framework == "jax"


@pytest.mark.parametrize(
    ("text", "field", "fault"),
    [
        (ROW + ROW.replace('tag = "2.12.0"\n', ""), "images.1.tag", "is missing"),
        (ROW.replace('tag = "2.12.0"', 'tag = "latest"'), "images.0.tag", "moves on"),
        (ROW.replace('tag = "2.12.0"', 'tag = "2.12; id"'), "images.0.tag", "2.12; id"),
        (ROW.replace("team/torch", "team/$(id)"), "images.0.name", "$(id)"),
        (ROW.replace("gpu = true", 'gpu = "perhaps"'), "images.0.gpu", "perhaps"),
        (ROW.replace("gpu = true\n", ""), "images.0.cuda", "without GPU"),
        (ROW.replace("2026-11-01", '"last week"'), "images.0.date", "last week"),
        (ROW + "size = 3", "images.0.size", "is not a field"),
        (ROW.replace("images", "image"), "images", "is missing"),
        ("", "images", "is missing"),
        ("[[images", "images", "not valid TOML"),
        (
            (
                '[[images]]\nname = "python"\ntag = "1"\nframework = "torch"\nversion ='
                ' "1"\npython = "3"\ndate = 2026-01-01'
            ),
            "images",
            "plain Python",
        ),
    ],
)
def test_a_file_with_a_fault_gets_one_error_that_names_row_and_field(
    text: str, field: str, fault: str
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        read_catalogue(text)
    first = caught.value.faults[0]
    assert (first.field, fault in first.fault) == (field, True), first
    assert first.remedy


@pytest.mark.parametrize(
    "tag", ["3", "2.1-py3", "a1b2c3", "2026-11-23", "nightly@sha256:" + "0" * 64]
)
def test_what_counts_as_pinned(tag: str) -> None:
    assert read_catalogue(ROW.replace('tag = "2.12.0"', f'tag = "{tag}"'))[0].tag == tag
