"""GPUs as people write them."""

import re
from typing import Any

import pytest

from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.gpu_text import gpus_of
from gpuyard.domain.validation import parse_spec


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8", {"count": 8}),
        (" 8 ", {"count": 8}),
        ("A100", {"gpu_class": "A100", "count": 1}),
        ("A100:8", {"gpu_class": "A100", "count": 8}),
        ("8xA100", {"gpu_class": "A100", "count": 8}),
        ("2 × RTX 4090", {"gpu_class": "RTX 4090", "count": 2}),
        ("A100-80GB:2", {"gpu_class": "A100-80GB", "count": 2}),
        ("80GB", {"memory_gb": "80GB", "count": 1}),
        ("4x80GB", {"memory_gb": "80GB", "count": 4}),
        ("80GB:4", {"memory_gb": "80GB", "count": 4}),
    ],
)
def test_what_it_says(text: str, expected: dict[str, Any]) -> None:
    assert gpus_of(text) == expected


def test_a_spec_may_say_it_so() -> None:
    spec = parse_spec({"command": ["true"], "resources": {"gpus": "4x80GB"}})
    gpus = spec.resources.gpus
    assert (gpus.count, gpus.memory_gb, gpus.gpu_class) == (4, 80, None)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("80XB", "'80XB' is not a size"),
        ("nothing:2", "nothing"),
        (
            "all",
            "'all' is neither a number of GPUs nor a class (say how many, such as 2)",
        ),
        ("5000", "1024"),
        ("", "gpu_class"),
    ],
)
def test_what_is_none_of_it_is_named(text: str, fault: str) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(fault)):
        parse_spec({"command": ["true"], "resources": {"gpus": text}})
