"""Imports structlog without what it would load to colour a log (Rich and Colorama) and
to log from greenlets.

The logs of gpuyard's own processes have no colours, and none of them has greenlets.
Rich alone would take a tenth of the time of their start.
"""

import sys
from importlib import import_module
from typing import Any

_UNUSED = ("rich", "colorama", "greenlet")


def import_structlog() -> None:
    """Import it, before anything else does."""
    modules: dict[str, Any] = sys.modules
    if "structlog" in modules:
        return
    hidden = [name for name in _UNUSED if name not in modules]
    # With None there, importing one fails, and structlog does without.
    modules.update(dict.fromkeys(hidden))
    try:
        import_module("structlog")
    finally:
        for name in hidden:
            del modules[name]
