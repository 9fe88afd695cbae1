"""Reading what a source imports."""

import keyword

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpuyard.insight.imports import imported

NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True).filter(
    lambda name: not keyword.iskeyword(name)
)
PIECES = [
    "import ",
    "from ",
    "torch",
    ".",
    "(",
    "'''",
    "\n",
    "%",
    " ",
    "1",
    "²",
    "__import__('a')",
]


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import torch", {"torch"}),
        ("import torch.nn as nn, os.path", {"torch", "os"}),
        ("from torch import x", {"torch"}),
        ("from torch.utils.data import (\n    DataLoader,\n)", {"torch"}),
        ("def f():\n    import torch\n", {"torch"}),
        ("try:\n    import torch\nexcept ImportError:\n    torch = None\n", {"torch"}),
        ("if True: import torch; import jax", {"torch", "jax"}),
        (
            "import importlib\nimportlib.import_module('torch.nn')",
            {"importlib", "torch"},
        ),
        ("load(import_module(name='torch'))", {"torch"}),
        ("__import__('torch')", {"torch"}),
        ("\ufeffimport torch\r\nimport jax\r\n", {"torch", "jax"}),
    ],
)
def test_what_counts(source: str, names: set[str]) -> None:
    assert imported(source) == names


@pytest.mark.parametrize(
    "source",
    [
        "# import torch",
        "print('import torch')",
        'use("torch")',
        '"""\nimport torch\n"""',
        "from . import torch",
        "from .torch import nn",
        "from ..torch import nn",
        "import_module(name)",
        "import_module()",
        "__import__(b'torch')",
        "__import__('torch nn')",
        "importlib.import_module('.torch', 'here')",
        "torch = 1",
        "",
    ],
)
def test_what_does_not(source: str) -> None:
    assert imported(source) <= {"importlib"}


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("%matplotlib inline\n!pip install jax\nimport torch\n", {"torch"}),
        ("if gpu:\n    !nvidia-smi\nimport torch\n", {"torch"}),
        ("%%bash\necho import jax\n", set()),
        ("import torch\nfiles = !ls\n", {"torch"}),
        (
            (
                "import torch\nprint 'Python 2', torch\nexcept Error, error:\n   "
                " import os\n"
            ),
            {"torch", "os"},
        ),
        ('"""Says:\nimport jax\n"""\nimport torch\nprint "x"\n', {"torch"}),
        ("from torch import (\n    nn,\n)\nprint 'import jax'\n", {"torch"}),
        ("import torch\ndef unfinished(", {"torch"}),
        ("import torch\n\0", {"torch"}),
        ("x = (1\n  % 2)\nimport torch\n", {"torch"}),
    ],
)
def test_a_source_with_faults_is_read_as_far_as_it_can_be(
    source: str, names: set[str]
) -> None:
    assert imported(source) == names


@given(st.text() | st.lists(st.sampled_from(PIECES)).map("".join))
@example("(" * 5000)
@example("-" * 100_000 + "1")
@example("'''" + '"""' * 1000)
@example("import \ud800")
@settings(deadline=None)
def test_no_text_raises(source: str) -> None:
    assert all(name.isidentifier() for name in imported(source))


@given(st.lists(st.tuples(NAMES, st.booleans()), max_size=8))
def test_every_import_is_found_and_no_other(modules: list[tuple[str, bool]]) -> None:
    source = "\n".join(
        f"import {name}" if real else f"# import {name}\nx = 'import {name}'"
        for name, real in modules
    )
    assert imported(source) == {name for name, real in modules if real}
