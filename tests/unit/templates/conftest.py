"""The template's own modules, which import one another by bare names."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from gpuyard import templates

NANOGPT = Path(templates.__file__).parent / "nanogpt"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Imports a module of the template, and forgets them all at the end: `data` is
    anybody's name.
    """
    before = set(sys.modules)
    monkeypatch.syspath_prepend(NANOGPT)
    yield importlib.import_module
    for name in {path.stem for path in NANOGPT.glob("*.py")} - before:
        sys.modules.pop(name, None)
