"""`python3 solve.py < order.json`: do what the order asks, and send what came of it.

It needs nothing of its surroundings but what its engine imports: the folder it lies in becomes a package, wherever it
was copied. The exit code is 0 when the order was carried out or declined, 1 when it failed, 2 when it cannot be read.
"""

import importlib
import importlib.util
import sys
from pathlib import Path

PACKAGE = "gpuyard_solver"


def load_package() -> None:
    """Make this folder the package `gpuyard_solver`, whatever the folder's name."""
    folder = Path(__file__).resolve().parent
    spec = importlib.util.spec_from_file_location(
        PACKAGE, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None
    sys.modules[PACKAGE] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[PACKAGE])
    # Its modules are no top-level modules: they must not hide others of the same name.
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != folder]


if __name__ == "__main__":
    load_package()
    sys.exit(importlib.import_module(f"{PACKAGE}.entry").main())
