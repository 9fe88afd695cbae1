"""The provider as gpuyard finds it: by the name of its entry point.

`pip install --editable .` comes first.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuyard.providers import registry


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Any]:
    """Makes the provider, again and again on the same cloud: as after a crash, or as
    two servers do.

    REPLACE: what your cloud's fake or test account needs. Any leftovers are yours to
    clean.
    """

    def make(**config: Any) -> Any:
        return registry.load("mycloud", {"home": str(tmp_path), **config})

    return make
